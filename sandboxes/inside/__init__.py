"""Copied into images, Python 3.9, standard library only."""
