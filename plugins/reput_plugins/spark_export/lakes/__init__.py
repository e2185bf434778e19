"""Formats of a lake's table: `lake_table` says what the rest needs of one, the other modules are one format each."""
