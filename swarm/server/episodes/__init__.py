"""Episodes: leases, the queue for admission, teams, timeouts, and the ledger they share.

May enter: what begins, holds and ends episodes. Which group and task one gets is in `swarm.server.batches`; its model
calls are in `swarm.server.calls`.
"""
