"""Verdicts say which ranges are not known to be equal, and from which number on what is equal stands for a dump; dumps
say that they are steps of a comparison."""

import sqlalchemy as sa
from alembic import op

revision = "0047"
down_revision = "0046"


def upgrade() -> None:
    op.add_column("verdict", sa.Column("unproven", sa.JSON(none_as_null=True)))
    op.add_column("verdict", sa.Column("since_gsn", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("dump", sa.Column("compares", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    op.drop_column("dump", "compares")
    op.drop_column("verdict", "since_gsn")
    op.drop_column("verdict", "unproven")
