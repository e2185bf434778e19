"""The requests of producers and consumers, a processor for each family."""
