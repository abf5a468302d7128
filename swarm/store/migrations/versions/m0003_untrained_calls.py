"""Calls that are not trained. Those that were written before all are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Mark each call: it is trained, or served alone."""
    op.add_column("nodes", sa.Column("trained", sa.Boolean, nullable=False, server_default=sa.true()))
