"""What somebody should know of a source whose log is read on."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("source", sa.Column("warnings", sa.JSON(none_as_null=True), nullable=False, server_default="[]"))


def downgrade() -> None:
    op.drop_column("source", "warnings")
