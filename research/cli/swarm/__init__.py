"""Commands about a swarm server of one's own, its clients and the episodes it recorded."""
