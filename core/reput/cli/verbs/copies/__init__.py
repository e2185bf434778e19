"""The verbs of copies of a master: `reput follow` and `reput promote`."""
