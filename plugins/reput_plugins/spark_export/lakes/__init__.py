"""Formats of a lake's table: `lake_table` is their common interface, and the other modules implement the formats."""
