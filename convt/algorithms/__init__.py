"""The algorithms: a folder each, with when it is chosen, its plans and its loops."""
