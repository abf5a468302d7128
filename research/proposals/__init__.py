"""Proposals: what may be proposed to a study, by a planner or by flags, as typed and checked values."""
