"""Registry of topics and groups: descriptions, subscriptions, filters, and counts."""
