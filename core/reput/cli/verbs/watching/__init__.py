"""The verbs that show a store or brokers to a person: `reput console` and `reput top`."""
