"""Wire formats of model calls."""
