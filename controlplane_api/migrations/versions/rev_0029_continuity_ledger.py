"""The continuity ledger of each table."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0026"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "ledger_entry",
        sa.Column("table_id", ID, autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("gsn", sa.BigInteger(), nullable=False),
        sa.Column("from_position", sa.Text(), nullable=False),
        sa.Column("to_position", sa.Text(), nullable=False),
        sa.Column("dump", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("table_id", "number", name=op.f("pk_ledger_entry")),
        sa.ForeignKeyConstraint(["table_id"], ["source_table.id"], name=op.f("fk_ledger_entry_table_id")),
    )
    op.create_table(
        "ledger_head",
        sa.Column("table_id", ID, autoincrement=False, nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("table_id", name=op.f("pk_ledger_head")),
        sa.ForeignKeyConstraint(["table_id"], ["source_table.id"], name=op.f("fk_ledger_head_table_id")),
    )


def downgrade() -> None:
    op.drop_table("ledger_head")
    op.drop_table("ledger_entry")
