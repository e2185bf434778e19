"""The wire between writer and dispatchers: frames, their publishers, and frames read from the log."""
