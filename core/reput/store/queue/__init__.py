"""The consume queue: its files, building and searching them."""
