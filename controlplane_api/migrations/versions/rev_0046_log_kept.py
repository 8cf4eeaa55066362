"""Heartbeats say of a source's log that its server keeps it without a limit, which is not the same as unknown."""

import sqlalchemy as sa
from alembic import op

revision = "0046"
down_revision = "0045"


def upgrade() -> None:
    op.add_column("source_health", sa.Column("log_is_unlimited", sa.Boolean(), nullable=True))


def downgrade() -> None:
    op.drop_column("source_health", "log_is_unlimited")
