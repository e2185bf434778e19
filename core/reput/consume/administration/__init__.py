"""Administration of topics and groups for operators, also in a store that no program has open."""
