"""What identifies a group: its store and settings, its lock, and its address."""
