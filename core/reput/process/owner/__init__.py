"""The program's side: a group of processes or an inline one, offline rebuilds, and status of a stopped store."""
