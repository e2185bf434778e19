"""Plugins: which are installed, what each declares, how they are loaded, and in which order they run."""
