"""The broker's state: connected clients, locked queues, topics, and counters."""
