"""What a store records about itself: identity, lock, checkpoint, epochs, settings, deletions."""
