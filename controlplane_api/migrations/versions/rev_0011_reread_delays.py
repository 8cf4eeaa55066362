"""Re-reads of a table that follow each other wait longer and longer."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("dump", sa.Column("delay_seconds", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("dump", "delay_seconds")
