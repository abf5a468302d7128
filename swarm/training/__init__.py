"""The step loop."""
