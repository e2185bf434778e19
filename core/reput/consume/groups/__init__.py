"""Consumers, and how those of one group share its queues and keep its offsets."""
