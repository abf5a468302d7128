"""Every token, durable."""
