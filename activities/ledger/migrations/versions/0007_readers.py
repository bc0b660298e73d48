"""Who makes an attempt of a step or a stretch: what somebody else does late does not count."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007_readers"
down_revision = "0006_checkpoints"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Let attempts of steps know who makes them, and runs whose stretch is the newest."""
    op.add_column("steps", sa.Column("holder", sa.String(length=400), nullable=True))
    op.add_column("runs", sa.Column("stretch", sa.String(length=400), nullable=True))


def downgrade() -> None:
    """Migrations only go forward: a ledger never loses what it has recorded."""
    raise NotImplementedError("restore a backup to go back")
