"""How often an agent is to be heard, so that what it says counts as old when it should have said something newer."""

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"


def upgrade() -> None:
    op.add_column("source_health", sa.Column("heartbeat_ms", sa.BigInteger(), nullable=False, server_default="1000"))


def downgrade() -> None:
    op.drop_column("source_health", "heartbeat_ms")
