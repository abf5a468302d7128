"""Task lists of streams: the server hands out their places, and knows of each episode for which turn it was."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add them; what was begun before counts for no turn."""
    op.create_table(
        "task_lists",
        sa.Column("training", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("stream", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("ids", sa.Text, nullable=False),
    )
    op.add_column("episodes", sa.Column("turn", sa.BigInteger))
    op.add_column("streams", sa.Column("turn", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("streams", sa.Column("unfinished", sa.Text, nullable=False, server_default="[]"))
