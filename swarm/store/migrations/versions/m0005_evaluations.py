"""What a checkpoint's weights were worth in an evaluation. Those that were saved before were not evaluated so."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Make room for it."""
    op.add_column("checkpoints", sa.Column("episodes", sa.Integer))
    op.add_column("checkpoints", sa.Column("reward", sa.Double))
    op.add_column("checkpoints", sa.Column("success", sa.Double))
