"""Backups of a store: consistent cuts of its log with its configuration, in a directory or an object store.

`reput backup` and `reput restore` are the commands. `layout` draws what lies in a target.
"""
