"""The data path from writer to dispatchers: frames, their publishers, and reading from the log."""
