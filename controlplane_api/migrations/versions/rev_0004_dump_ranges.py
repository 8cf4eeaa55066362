"""The ledger keeps where each range is instead of every chunk; a plan says between which numbers its key lies."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DOCUMENT = sa.JSON(none_as_null=True)

_COUNTED = "FROM dump_chunk WHERE dump_id = dump_range.dump_id AND dump_chunk.range = dump_range.number AND counted"


def upgrade() -> None:
    op.add_column("dump", sa.Column("least_key", sa.Double(), nullable=True))
    op.add_column("dump", sa.Column("greatest_key", sa.Double(), nullable=True))
    op.add_column("dump_range", sa.Column("bytes", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("dump_range", sa.Column("chunks", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("dump_range", sa.Column("former", DOCUMENT, nullable=True))
    op.execute(
        f"UPDATE dump_range SET bytes = (SELECT COALESCE(SUM(bytes), 0) {_COUNTED}),"  # noqa: S608  (no value in it)
        f" chunks = (SELECT COUNT(*) {_COUNTED})"
    )
    op.drop_index(op.f("ix_dump_chunk_dump_id"), "dump_chunk")
    op.drop_table("dump_chunk")


def downgrade() -> None:
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
    op.drop_column("dump_range", "former")
    op.drop_column("dump_range", "chunks")
    op.drop_column("dump_range", "bytes")
    op.drop_column("dump", "greatest_key")
    op.drop_column("dump", "least_key")
