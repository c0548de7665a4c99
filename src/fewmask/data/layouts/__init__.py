"""Public data sets, read as they lie on disk."""
