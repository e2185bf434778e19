"""Comparing a store with its log, and showing its files as text."""
