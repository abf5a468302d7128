"""Databases: connections, their tables, SQLite's log, PostgreSQL, and what their errors mean.

May enter: what depends on the kind of database or on its connection. What stands in the tables is in
`swarm.store.tables`.
"""
