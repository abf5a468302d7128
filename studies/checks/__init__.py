"""What data say against a comparison."""
