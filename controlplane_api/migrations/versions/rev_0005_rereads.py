"""A table's sync notes rows that the server changed unlogged; a dump says whether it was ordered for them."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("sync", sa.Column("unlogged", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("table_event", sa.Column("unlogged_changes", sa.Text(), server_default="", nullable=False))
    op.add_column("dump", sa.Column("cause", sa.Text(), server_default="", nullable=False))


def downgrade() -> None:
    op.drop_column("dump", "cause")
    op.drop_column("table_event", "unlogged_changes")
    op.drop_column("sync", "unlogged")
