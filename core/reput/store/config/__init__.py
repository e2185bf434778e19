"""The configuration files of a broker: topics, offsets, subscription groups, filters."""
