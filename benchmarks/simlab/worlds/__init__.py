"""Planted truth: what each configuration is worth, the noise around it, and the topics that ask about it."""
