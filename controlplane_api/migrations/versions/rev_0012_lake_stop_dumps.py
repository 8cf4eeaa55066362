"""A lake's stop keeps whether a dump ends it, and whether that dump was asked for."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.add_column("lake_stop", sa.Column("reread", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("lake_stop", sa.Column("gsn", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("lake_stop", sa.Column("asked", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    op.drop_column("lake_stop", "asked")
    op.drop_column("lake_stop", "gsn")
    op.drop_column("lake_stop", "reread")
