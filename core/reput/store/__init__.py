"""Bytes on disk: the commit log, its views' files and what stands beside them. Knows no ring, process or socket."""
