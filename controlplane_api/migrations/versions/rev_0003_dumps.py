"""Dumps: what is asked for, their plans, ranges, committed chunks and what the agent says of them."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DOCUMENT = sa.JSON(none_as_null=True)


def upgrade() -> None:
    op.add_column("source", sa.Column("dump_generation", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("table_event", sa.Column("dump", sa.Text(), server_default="", nullable=False))
    op.create_table(
        "dump",
        sa.Column("id", ID, nullable=False),
        sa.Column("uuid", sa.Text(), nullable=False),
        sa.Column("source_id", ID, nullable=False),
        sa.Column("table_id", ID, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("sync_generation", sa.BigInteger(), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("ended_at_us", sa.BigInteger(), nullable=True),
        sa.Column("problem", DOCUMENT, nullable=True),
        sa.Column("priority", sa.BigInteger(), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("forced", sa.Boolean(), nullable=False),
        sa.Column("workers", sa.BigInteger(), nullable=False),
        sa.Column("rows_per_second", sa.BigInteger(), nullable=False),
        sa.Column("bytes_per_second", sa.BigInteger(), nullable=False),
        sa.Column("planned_at_us", sa.BigInteger(), nullable=True),
        sa.Column("key", DOCUMENT, nullable=False),
        sa.Column("estimated_rows", sa.BigInteger(), nullable=True),
        sa.Column("estimated_bytes", sa.BigInteger(), nullable=True),
        sa.Column("runway_seconds", sa.BigInteger(), nullable=True),
        sa.Column("needed_seconds", sa.BigInteger(), nullable=True),
        sa.Column("warning", sa.Text(), nullable=False),
        sa.Column("started_gsn", sa.BigInteger(), nullable=False),
        sa.Column("next_chunk", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("chunks", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["source_id"], ["source.id"], name=op.f("fk_dump_source_id")),
        sa.ForeignKeyConstraint(["table_id"], ["source_table.id"], name=op.f("fk_dump_table_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dump")),
        sa.UniqueConstraint("source_id", "uuid", name=op.f("uq_dump_source_id")),
    )
    op.create_index(op.f("ix_dump_source_id"), "dump", ["source_id", "state"])
    op.create_index(op.f("ix_dump_table_id"), "dump", ["table_id"])
    op.create_table(
        "dump_range",
        sa.Column("dump_id", ID, autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("lower", sa.Text(), nullable=False),
        sa.Column("upper", sa.Text(), nullable=False),
        sa.Column("reached", sa.Text(), nullable=False),
        sa.Column("done", sa.Boolean(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["dump_id"], ["dump.id"], name=op.f("fk_dump_range_dump_id")),
        sa.PrimaryKeyConstraint("dump_id", "number", name=op.f("pk_dump_range")),
    )
    op.create_table(
        "dump_chunk",
        sa.Column("dump_id", ID, autoincrement=False, nullable=False),
        sa.Column("chunk", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("range", sa.BigInteger(), nullable=False),
        sa.Column("lower", sa.Text(), nullable=False),
        sa.Column("upper", sa.Text(), nullable=False),
        sa.Column("counted", sa.Boolean(), nullable=False),
        sa.Column("gsn", sa.BigInteger(), nullable=False),
        sa.Column("cut", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("read_at_us", sa.BigInteger(), nullable=False),
        sa.Column("read_us", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.Text(), nullable=False),
        sa.Column("committed_at_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["dump_id"], ["dump.id"], name=op.f("fk_dump_chunk_dump_id")),
        sa.PrimaryKeyConstraint("dump_id", "chunk", name=op.f("pk_dump_chunk")),
    )
    op.create_index(op.f("ix_dump_chunk_dump_id"), "dump_chunk", ["dump_id", "committed_at_us"])
    op.create_table(
        "dump_status",
        sa.Column("dump_id", ID, autoincrement=False, nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("rows_per_second", sa.BigInteger(), nullable=False),
        sa.Column("bytes_per_second", sa.BigInteger(), nullable=False),
        sa.Column("uncommitted_rows", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["dump_id"], ["dump.id"], name=op.f("fk_dump_status_dump_id")),
        sa.PrimaryKeyConstraint("dump_id", name=op.f("pk_dump_status")),
    )


def downgrade() -> None:
    op.drop_table("dump_status")
    op.drop_index(op.f("ix_dump_chunk_dump_id"), "dump_chunk")
    op.drop_table("dump_chunk")
    op.drop_table("dump_range")
    op.drop_index(op.f("ix_dump_table_id"), "dump")
    op.drop_index(op.f("ix_dump_source_id"), "dump")
    op.drop_table("dump")
    op.drop_column("table_event", "dump")
    op.drop_column("source", "dump_generation")
