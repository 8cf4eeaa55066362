"""How definitions of tables have changed."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("source_table", sa.Column("definitions", sa.BigInteger(), nullable=False, server_default="0"))
    op.create_table(
        "table_definition",
        sa.Column("id", ID, nullable=False),
        sa.Column("source_id", ID, nullable=False),
        sa.Column("table_id", ID, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("teller", sa.Text(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=True),
        sa.Column("gsn", sa.BigInteger(), nullable=True),
        sa.Column("position", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("columns", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("keys", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_table_definition")),
        sa.UniqueConstraint("table_id", "number", name=op.f("uq_table_definition_table_id")),
        sa.ForeignKeyConstraint(["source_id"], ["source.id"], name=op.f("fk_table_definition_source_id")),
        sa.ForeignKeyConstraint(["table_id"], ["source_table.id"], name=op.f("fk_table_definition_table_id")),
    )
    op.create_index(op.f("ix_table_definition_source_id"), "table_definition", ["source_id", "id"])


def downgrade() -> None:
    op.drop_table("table_definition")
    op.drop_column("source_table", "definitions")
