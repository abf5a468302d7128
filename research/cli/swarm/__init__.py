"""Commands about a swarm server of one's own, its clients and the episodes it recorded.

May enter: commands about servers, clients and episodes, and how an episode is shown on a terminal or a page. Running an
agent is in `research.agents`. To add one: a module here and its line in `app.py` (`ajet swarm`), or a function in
`client.py` (`ajet client`).
"""
