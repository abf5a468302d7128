"""Whole trainings of the backends `verl` and `local`, and the verdict on what they differ by."""
