"""Verdicts: from the runs of two arms and a locked rule to what may be claimed. Pure functions of values."""
