"""The last cut with files of each table."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.add_column("sync", sa.Column("last_cut", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("sync", "last_cut")
