"""Which rows a verification reads that reads again what differed."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"


def upgrade() -> None:
    op.add_column("dump", sa.Column("focus", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("dump", "focus")
