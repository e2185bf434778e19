"""`reput top`: a store or brokers, watched in a terminal."""
