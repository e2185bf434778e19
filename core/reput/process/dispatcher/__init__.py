"""One dispatcher: its states, its loop, what its plugin gets from the host, and its process."""
