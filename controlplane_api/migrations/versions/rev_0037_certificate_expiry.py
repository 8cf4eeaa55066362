"""Until when agents' certificates are good."""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"


def upgrade() -> None:
    op.add_column("agent", sa.Column("certificate_expires_at_us", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("agent", "certificate_expires_at_us")
