"""The Linux facilities that a group's processes use: fresh processes, parent-death signals, poll, time slices."""
