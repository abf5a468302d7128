"""Engines and learners."""
