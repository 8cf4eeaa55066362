"""The first shape: tenants, agents, sources, their tables and syncs, positions, leases."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DOCUMENT = sa.JSON(none_as_null=True)


def upgrade() -> None:
    op.create_table(
        "landing",
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("applied_entry", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("url", name=op.f("pk_landing")),
    )
    op.create_table(
        "lease",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("gateway", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("expires_at_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "source", name=op.f("pk_lease")),
    )
    op.create_table(
        "tenant",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenant")),
        sa.UniqueConstraint("name", name=op.f("uq_tenant_name")),
    )
    op.create_table(
        "agent",
        sa.Column("id", ID, nullable=False),
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("session", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("hostname", sa.Text(), nullable=False),
        sa.Column("connected", sa.Boolean(), nullable=False),
        sa.Column("connected_at_us", sa.BigInteger(), nullable=False),
        sa.Column("seen_at_us", sa.BigInteger(), nullable=False),
        sa.Column("resident_memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("cpu_us", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_agent_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_agent")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_agent_tenant_id")),
    )
    op.create_table(
        "source",
        sa.Column("id", ID, nullable=False),
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("agent_id", ID, nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("flavor", sa.Text(), nullable=False),
        sa.Column("server_version", sa.Text(), nullable=False),
        sa.Column("server_uuid", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("policy_sha256", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("problem", DOCUMENT, nullable=True),
        sa.Column("cartography_at_us", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["agent_id"], ["agent.id"], name=op.f("fk_source_agent_id")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_source_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_source")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_source_tenant_id")),
    )
    op.create_index(op.f("ix_source_agent_id"), "source", ["agent_id"])

    op.create_table(
        "committed_position",
        sa.Column("source_id", ID, autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("cut", sa.BigInteger(), nullable=False),
        sa.Column("last_gsn", sa.BigInteger(), nullable=False),
        sa.Column("last_transaction_id", sa.BigInteger(), nullable=False),
        sa.Column("position", DOCUMENT, nullable=False),
        sa.Column("ahead", DOCUMENT, nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("transactions", sa.BigInteger(), nullable=False),
        sa.Column("last_commit_timestamp_us", sa.BigInteger(), nullable=True),
        sa.Column("committed_at_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["source_id"], ["source.id"], name=op.f("fk_committed_position_source_id")),
        sa.PrimaryKeyConstraint("source_id", name=op.f("pk_committed_position")),
    )
    op.create_table(
        "source_health",
        sa.Column("source_id", ID, autoincrement=False, nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("read_position", sa.Text(), nullable=False),
        sa.Column("source_position", sa.Text(), nullable=False),
        sa.Column("lag_us", sa.BigInteger(), nullable=True),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("transactions", sa.BigInteger(), nullable=False),
        sa.Column("read_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sent_bytes", sa.BigInteger(), nullable=False),
        sa.Column("credit_wait_us", sa.BigInteger(), nullable=False),
        sa.Column("rows_per_second", sa.Double(), nullable=True),
        sa.Column("read_bytes_per_second", sa.Double(), nullable=True),
        sa.Column("problem", DOCUMENT, nullable=True),
        sa.ForeignKeyConstraint(["source_id"], ["source.id"], name=op.f("fk_source_health_source_id")),
        sa.PrimaryKeyConstraint("source_id", name=op.f("pk_source_health")),
    )
    op.create_table(
        "source_table",
        sa.Column("id", ID, nullable=False),
        sa.Column("source_id", ID, nullable=False),
        sa.Column("database", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("table_collation", sa.Text(), nullable=False),
        sa.Column("estimated_rows", sa.BigInteger(), nullable=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=True),
        sa.Column("columns", DOCUMENT, nullable=False),
        sa.Column("keys", DOCUMENT, nullable=False),
        sa.Column("denied", sa.Boolean(), nullable=False),
        sa.Column("gone", sa.Boolean(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["source_id"], ["source.id"], name=op.f("fk_source_table_source_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_source_table")),
        sa.UniqueConstraint("source_id", "database", "name", name=op.f("uq_source_table_source_id")),
    )
    op.create_table(
        "sync",
        sa.Column("table_id", ID, autoincrement=False, nullable=False),
        sa.Column("source_id", ID, nullable=False),
        sa.Column("desired", sa.Text(), nullable=False),
        sa.Column("start", sa.Text(), nullable=True),
        sa.Column("start_text", sa.Text(), nullable=False),
        sa.Column("changed_generation", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.Boolean(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("problem", DOCUMENT, nullable=True),
        sa.Column("position", DOCUMENT, nullable=True),
        sa.Column("earlier_rows_missing", sa.Text(), nullable=False),
        sa.Column("ignored_columns", DOCUMENT, nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("last_commit_timestamp_us", sa.BigInteger(), nullable=True),
        sa.Column("landed_at_us", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["source_id"], ["source.id"], name=op.f("fk_sync_source_id")),
        sa.ForeignKeyConstraint(["table_id"], ["source_table.id"], name=op.f("fk_sync_table_id")),
        sa.PrimaryKeyConstraint("table_id", name=op.f("pk_sync")),
    )
    op.create_index(op.f("ix_sync_source_id"), "sync", ["source_id", "state"])


def downgrade() -> None:
    op.drop_index(op.f("ix_sync_source_id"), "sync")

    op.drop_table("sync")
    op.drop_table("source_table")
    op.drop_table("source_health")
    op.drop_table("committed_position")
    op.drop_index(op.f("ix_source_agent_id"), "source")

    op.drop_table("source")
    op.drop_table("agent")
    op.drop_table("tenant")
    op.drop_table("lease")
    op.drop_table("landing")
