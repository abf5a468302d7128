"""One model call."""
