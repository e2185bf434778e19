"""Plugins: which are installed, what each declares, how one is loaded, and in which order they run."""
