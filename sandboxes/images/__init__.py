"""What containers run in."""
