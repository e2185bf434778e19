"""Pulls of one queue, waiting for messages, and the messages of a topic in the order of the log."""
