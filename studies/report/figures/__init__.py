"""Figures: the data of each, and how it is drawn."""
