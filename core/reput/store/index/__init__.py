"""The key index: its files, building and searching them."""
