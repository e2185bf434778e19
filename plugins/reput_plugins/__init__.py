"""The dispatchers that come with reput. They are found by entry point, like any other dispatcher."""
