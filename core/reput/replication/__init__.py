"""Replication: copying the log of a running master, and being copied; RocketMQ's wire, seen from both ends."""
