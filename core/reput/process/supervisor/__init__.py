"""The process that starts, watches, restarts and stops the dispatchers of one store."""
