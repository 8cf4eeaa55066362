"""The last events of each table."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "table_event",
        sa.Column("table_id", ID, nullable=False),
        sa.Column("gsn", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("commit_timestamp_us", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.Text(), nullable=False),
        sa.Column("statement", sa.Text(), nullable=False),
        sa.Column("removes_rows", sa.Boolean(), nullable=False),
        sa.Column("new_name", sa.JSON(none_as_null=True), nullable=False),
        sa.ForeignKeyConstraint(["table_id"], ["source_table.id"], name=op.f("fk_table_event_table_id")),
        sa.PrimaryKeyConstraint("table_id", "gsn", name=op.f("pk_table_event")),
    )


def downgrade() -> None:
    op.drop_table("table_event")
