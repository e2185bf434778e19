"""Opening a log after a crash, after another writer, or with damage; repair."""
