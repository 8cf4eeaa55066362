"""Each table's foreign keys as the cut log tells them, and how far each lake is for good."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    op.add_column("sync", sa.Column("foreign_keys", sa.JSON(), nullable=True))
    op.add_column("lake", sa.Column("durable_entry", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("lake", "durable_entry")
    op.drop_column("sync", "foreign_keys")
