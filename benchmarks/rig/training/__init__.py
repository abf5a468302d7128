"""Whole trainings as processes of their own: through a server, in one process, and by TRL."""
