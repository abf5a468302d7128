"""Which answers a limit on tokens ended. Of those that were sampled before, nobody knows it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Mark each call."""
    op.add_column("nodes", sa.Column("cut", sa.Boolean, nullable=False, server_default=sa.false()))
