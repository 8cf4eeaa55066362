"""Positions of tables that somebody has altered, until their syncs begin there."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    op.add_column("sync", sa.Column("altered", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("sync", "altered")
