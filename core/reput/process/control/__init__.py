"""The control channel: JSON lines between owner, supervisor and other programs, and the status they carry."""
