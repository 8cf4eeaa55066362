"""How long gateways' leases are, so that one from before the clock went back is known as such."""

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"


def upgrade() -> None:
    op.add_column("gateway", sa.Column("lease_us", sa.BigInteger(), nullable=False, server_default="15000000"))


def downgrade() -> None:
    op.drop_column("gateway", "lease_us")
