"""Training: the step loop, its checkpoints, metrics and trackers."""
