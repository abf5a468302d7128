"""The tables: their schema, the changes that are written, and how each becomes rows.

May enter: what the tables hold, and how values become rows. Connections are in `swarm.store.databases`; transactions
and the thread that writes are in `swarm/store/writer.py`.
"""
