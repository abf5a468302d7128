"""Alembic's migrations of the store, applied when it is opened (`swarm.store.databases.database`).

May enter: Alembic's entry alone. The migrations themselves are in `versions`.
"""
