"""The gateway: what a container reaches through the sockets of its exchange folder, decided outside of it."""
