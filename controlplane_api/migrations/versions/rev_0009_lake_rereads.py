"""How many dumps an hour a lake may ask for, where it can't tell what a foreign key did."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("sync", sa.Column("lake_rereads_per_hour", sa.BigInteger(), server_default="0", nullable=False))


def downgrade() -> None:
    op.drop_column("sync", "lake_rereads_per_hour")
