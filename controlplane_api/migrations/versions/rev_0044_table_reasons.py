"""Why tables are in their states: who has stopped one, of which generation agents have spoken, what holds a dump."""

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"


def upgrade() -> None:
    op.add_column("sync", sa.Column("stopped_by", sa.Text(), nullable=False, server_default=""))
    op.add_column("source", sa.Column("told_generation", sa.BigInteger(), nullable=True))
    op.add_column("dump_status", sa.Column("held", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("dump_status", "held")
    op.drop_column("source", "told_generation")
    op.drop_column("sync", "stopped_by")
