"""What code played an episode. Of those that were begun before, nobody knows it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Make room for it."""
    op.add_column("episodes", sa.Column("code", sa.Text))
