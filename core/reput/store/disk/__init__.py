"""Files: names, descriptors, sealed and line-by-line files, free space, and errors of a short system."""
