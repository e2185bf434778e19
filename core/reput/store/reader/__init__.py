"""Reading messages by queue offset, commit-log offset, key and time."""
