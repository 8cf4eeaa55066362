"""What sinks report of their lakes; which entry of which cut log a source's last cut stands in."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DOCUMENT = sa.JSON(none_as_null=True)


def upgrade() -> None:
    op.create_table(
        "lake",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("landing", sa.Text(), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("complete", sa.Boolean(), nullable=False),
        sa.Column("entry", sa.BigInteger(), nullable=False),
        sa.Column("waiting_since_us", sa.BigInteger(), nullable=False),
        sa.Column("problem", DOCUMENT, nullable=True),
        sa.Column("received_at_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lake")),
        sa.UniqueConstraint("name", name=op.f("uq_lake_name")),
    )
    op.create_table(
        "lake_source",
        sa.Column("lake_id", ID, autoincrement=False, nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("entry", sa.BigInteger(), nullable=False),
        sa.Column("cut", sa.BigInteger(), nullable=False),
        sa.Column("committed_at_us", sa.BigInteger(), nullable=False),
        sa.Column("last_commit_timestamp_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["lake_id"], ["lake.id"], name=op.f("fk_lake_source_lake_id")),
        sa.PrimaryKeyConstraint("lake_id", "tenant", "source", name=op.f("pk_lake_source")),
    )
    op.create_index(op.f("ix_lake_source_tenant"), "lake_source", ["tenant", "source"])
    op.create_table(
        "lake_stop",
        sa.Column("lake_id", ID, autoincrement=False, nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("database", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("entry", sa.BigInteger(), nullable=False),
        sa.Column("cut", sa.BigInteger(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("terminal", sa.Boolean(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("last_commit_timestamp_us", sa.BigInteger(), nullable=False),
        sa.Column("retry", sa.Boolean(), nullable=False),
        sa.Column("stale", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["lake_id"], ["lake.id"], name=op.f("fk_lake_stop_lake_id")),
        sa.PrimaryKeyConstraint("lake_id", "tenant", "source", "database", "name", name=op.f("pk_lake_stop")),
    )
    op.create_index(op.f("ix_lake_stop_tenant"), "lake_stop", ["tenant", "source", "database", "name"])
    op.add_column("committed_position", sa.Column("landing", sa.Text(), server_default="", nullable=False))
    op.add_column("committed_position", sa.Column("entry", sa.BigInteger(), server_default="0", nullable=False))
    # With one cut log all cuts stand in it, at the last applied entry or before.
    op.execute(
        "UPDATE committed_position SET landing = (SELECT url FROM landing),"
        " entry = (SELECT applied_entry FROM landing) WHERE (SELECT COUNT(*) FROM landing) = 1"
    )


def downgrade() -> None:
    op.drop_column("committed_position", "entry")
    op.drop_column("committed_position", "landing")
    op.drop_index(op.f("ix_lake_stop_tenant"), "lake_stop")
    op.drop_table("lake_stop")
    op.drop_index(op.f("ix_lake_source_tenant"), "lake_source")
    op.drop_table("lake_source")
    op.drop_table("lake")
