"""What was measured of each step. Of those that were settled before, the trackers alone have it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make room for it."""
    op.add_column("steps", sa.Column("metrics", sa.Text))
