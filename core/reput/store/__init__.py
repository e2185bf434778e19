"""Bytes on disk: the commit log, the files of its views, and reput's own files. Knows no ring, process or socket."""
