"""What operators ask of topics and groups and change of them, also in a store that no program has open."""
