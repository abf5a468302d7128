"""What the server benchmarks share: servers as processes, and load that costs little beside them."""
