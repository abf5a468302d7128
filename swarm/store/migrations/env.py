"""Alembic's entry: migrates over the connection it was given (`swarm.store.databases.database`, or a test)."""

from __future__ import annotations

from alembic import context

from swarm.store.tables.schema import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
