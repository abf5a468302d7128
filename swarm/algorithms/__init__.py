"""Advantages, losses, metrics as pure functions."""
