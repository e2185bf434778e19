"""The commit log: segments, appending, forcing and committing, and scanning."""
