"""What a container reaches."""
