"""Attempts at runs and their evidence."""
