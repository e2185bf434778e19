"""What is known of topics and groups: descriptions, subscriptions, filters, and counts."""
