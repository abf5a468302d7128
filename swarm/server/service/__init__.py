"""The server without its HTTP: one loaded job, and read access to its episodes."""
