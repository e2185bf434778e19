"""What the processes of a group ask of Linux: fresh processes, signals of death, a poll, time slices."""
