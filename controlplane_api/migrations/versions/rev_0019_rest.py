"""What the API has answered to commands with a key, standing rules, and operations on tables."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "kept_answer",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("caller", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("request_sha256", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "caller", "key", name=op.f("pk_kept_answer")),
    )
    op.create_index(op.f("ix_kept_answer_tenant"), "kept_answer", ["tenant", "at_us"])
    op.create_table(
        "sync_rule",
        sa.Column("id", ID, nullable=False),
        sa.Column("uuid", sa.Text(), nullable=False),
        sa.Column("source_id", ID, nullable=False),
        sa.Column("database", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("start", sa.Text(), nullable=False),
        sa.Column("options", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["source_id"], ["source.id"], name=op.f("fk_sync_rule_source_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sync_rule")),
        sa.UniqueConstraint("source_id", "database", "name", name=op.f("uq_sync_rule_source_id")),
    )
    op.create_table(
        "operation",
        sa.Column("id", ID, nullable=False),
        sa.Column("uuid", sa.Text(), nullable=False),
        sa.Column("source_id", ID, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("tables", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["source_id"], ["source.id"], name=op.f("fk_operation_source_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_operation")),
        sa.UniqueConstraint("source_id", "uuid", name=op.f("uq_operation_source_id")),
    )
    op.create_table(
        "operation_table",
        sa.Column("operation_id", ID, autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("table_id", ID, nullable=True),
        sa.Column("database", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("changed", sa.Boolean(), nullable=False),
        sa.Column("refused", sa.Text(), nullable=False),
        sa.Column("dump", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["operation_id"], ["operation.id"], name=op.f("fk_operation_table_operation_id")),
        sa.PrimaryKeyConstraint("operation_id", "number", name=op.f("pk_operation_table")),
    )


def downgrade() -> None:
    for name in ("operation_table", "operation", "sync_rule", "kept_answer"):
        op.drop_table(name)
