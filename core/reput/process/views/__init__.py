"""A view's folders on disk, the folder in which a view is rebuilt, dead letters and gaps."""
