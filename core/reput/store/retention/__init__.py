"""Removing old segments."""
