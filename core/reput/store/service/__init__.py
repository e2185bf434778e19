"""Threads of the store: how they start, and what their end means for those that wait."""
