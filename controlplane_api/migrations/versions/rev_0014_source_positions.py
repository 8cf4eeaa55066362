"""A position is stored once for all tables of a source that are there, and a sync names it."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DOCUMENT = sa.JSON(none_as_null=True)


def upgrade() -> None:
    op.create_table(
        "source_position",
        sa.Column("id", ID, nullable=False),
        sa.Column("source_id", ID, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("position", DOCUMENT, nullable=False),
        sa.ForeignKeyConstraint(["source_id"], ["source.id"], name=op.f("fk_source_position_source_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_source_position")),
        sa.UniqueConstraint("source_id", "digest", name=op.f("uq_source_position_source_id")),
    )
    op.add_column("sync", sa.Column("position_id", sa.BigInteger(), nullable=True))
    # Each table has its own at first: neither database can make the digest. They go as their tables move on.
    op.execute(
        "INSERT INTO source_position (source_id, digest, position)"
        " SELECT source_id, 'table ' || table_id, position FROM sync WHERE position IS NOT NULL"
    )
    op.execute(
        "UPDATE sync SET position_id = (SELECT id FROM source_position WHERE source_position.source_id = sync.source_id"
        " AND digest = 'table ' || sync.table_id)"
    )
    op.create_index(op.f("ix_sync_position_id"), "sync", ["position_id"])
    op.drop_column("sync", "position")


def downgrade() -> None:
    op.add_column("sync", sa.Column("position", DOCUMENT, nullable=True))
    op.execute("UPDATE sync SET position = (SELECT position FROM source_position WHERE id = sync.position_id)")
    op.drop_index(op.f("ix_sync_position_id"), "sync")
    op.drop_column("sync", "position_id")
    op.drop_table("source_position")
