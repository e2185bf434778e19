"""What a verb works on: an open store, a stopped one, or brokers."""
