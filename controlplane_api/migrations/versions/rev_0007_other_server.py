"""A source shows the server that is there in place of the one that was read, and which one was accepted."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("source", sa.Column("other_server", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("source", sa.Column("accepted_server", sa.Text(), server_default="", nullable=False))


def downgrade() -> None:
    op.drop_column("source", "accepted_server")
    op.drop_column("source", "other_server")
