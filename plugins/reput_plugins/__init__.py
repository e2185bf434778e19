"""The dispatchers that come with reput. They are found by entry point, as everyone else's are."""
