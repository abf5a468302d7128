"""The server without its HTTP: one loaded job, and read access to its episodes.

May enter: what puts the server together around one job, and what is shown of its episodes. Routes are in
`swarm.server.http`, the step loop is in `swarm.server.training`, file formats are in `swarm.exports`.
"""
