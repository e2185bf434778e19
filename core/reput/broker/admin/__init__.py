"""The requests of administrators: what RocketMQ's tools ask."""
