"""What identifies a group: its store and settings, its lock, and where it can be found."""
