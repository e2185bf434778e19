"""A name server: it knows which brokers have which topics, and tells clients."""
