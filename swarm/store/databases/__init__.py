"""Databases: connections, migrations, SQLite's log, PostgreSQL, and what their errors mean."""
