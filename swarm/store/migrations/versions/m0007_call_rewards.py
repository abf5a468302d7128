"""Rewards of single calls. Of what ended before, each call is worth what its episode is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0005"


def upgrade() -> None:
    """Make room for them."""
    op.add_column("episodes", sa.Column("call_rewards", sa.Text))
