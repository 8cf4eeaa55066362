"""What agents run, the packages that they may be given, and the rollouts that give them."""

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"

ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
NUMBER = sa.BigInteger()


def upgrade() -> None:
    _packages()
    _rollouts()
    if op.get_context().dialect.name == "postgresql":  # see revision 0017
        op.execute(
            "CREATE TRIGGER menura_tell_change AFTER INSERT OR DELETE OR UPDATE OF state, generation"
            " ON rollout_agent FOR EACH STATEMENT EXECUTE FUNCTION menura_tell_change()"
        )


def _packages() -> None:
    op.create_table(
        "agent_version",
        sa.Column("agent_id", ID, nullable=False, autoincrement=False),
        sa.Column("generation", NUMBER, nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("machine", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("downloaded_bytes", NUMBER, nullable=False),
        sa.Column("problem", sa.JSON(), nullable=True),
        sa.Column("told_at_us", NUMBER, nullable=False),
        sa.Column("ordered", NUMBER, nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("agent_id", name="pk_agent_version"),
        sa.ForeignKeyConstraint(["agent_id"], ["agent.id"], name="fk_agent_version_agent_id"),
    )
    op.create_table(
        "agent_release",
        sa.Column("id", ID, nullable=False),
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("sums", sa.LargeBinary(), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        sa.Column("size_bytes", NUMBER, nullable=False),
        sa.Column("complete", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("created_at_us", NUMBER, nullable=False),
        sa.Column("changed_at_us", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_agent_release"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name="fk_agent_release_tenant_id"),
        sa.UniqueConstraint("tenant_id", "version", name="uq_agent_release_tenant_id"),
    )
    op.create_table(
        "agent_package",
        sa.Column("id", ID, nullable=False),
        sa.Column("release_id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("machine", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("size_bytes", NUMBER, nullable=False),
        sa.Column("received_bytes", NUMBER, nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("id", name="pk_agent_package"),
        sa.ForeignKeyConstraint(["release_id"], ["agent_release.id"], name="fk_agent_package_release_id"),
        sa.UniqueConstraint("release_id", "name", name="uq_agent_package_release_id"),
    )
    op.create_index("ix_agent_package_sha256", "agent_package", ["sha256"])
    op.create_table(
        "agent_package_piece",
        sa.Column("package_id", ID, nullable=False, autoincrement=False),
        sa.Column("number", NUMBER, nullable=False, autoincrement=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("package_id", "number", name="pk_agent_package_piece"),
        sa.ForeignKeyConstraint(["package_id"], ["agent_package.id"], name="fk_agent_package_piece_package_id"),
    )


def _rollouts() -> None:
    op.create_table(
        "rollout",
        sa.Column("id", ID, nullable=False),
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("back_of", NUMBER, nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("problem", sa.JSON(), nullable=True),
        sa.Column("groups", sa.JSON(), nullable=False),
        sa.Column("group_number", NUMBER, nullable=False, server_default="0"),
        sa.Column("wait_us", NUMBER, nullable=False),
        sa.Column("at_once", NUMBER, nullable=False),
        sa.Column("most_failures", NUMBER, nullable=False),
        sa.Column("return_us", NUMBER, nullable=False),
        sa.Column("roll_back", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("clock_us", NUMBER, nullable=False, server_default="0"),
        sa.Column("looked_at_us", NUMBER, nullable=False),
        sa.Column("whole_us", NUMBER, nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at_us", NUMBER, nullable=False),
        sa.Column("ended_at_us", NUMBER, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_rollout"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name="fk_rollout_tenant_id"),
    )
    op.create_index("ix_rollout_tenant_id", "rollout", ["tenant_id", "state"])
    op.create_index("ix_rollout_state", "rollout", ["state", "looked_at_us"])
    op.create_table(
        "rollout_agent",
        sa.Column("rollout_id", ID, nullable=False, autoincrement=False),
        sa.Column("agent_id", ID, nullable=False, autoincrement=False),
        sa.Column("group_number", NUMBER, nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("former_version", sa.Text(), nullable=False, server_default=""),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("generation", NUMBER, nullable=False, server_default="0"),
        sa.Column("since_us", NUMBER, nullable=False, server_default="0"),
        sa.Column("problem", sa.JSON(), nullable=True),
        sa.Column("skipped", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.PrimaryKeyConstraint("rollout_id", "agent_id", name="pk_rollout_agent"),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollout.id"], name="fk_rollout_agent_rollout_id"),
        sa.ForeignKeyConstraint(["agent_id"], ["agent.id"], name="fk_rollout_agent_agent_id"),
    )
    op.create_index("ix_rollout_agent_agent_id", "rollout_agent", ["agent_id", "state"])
    op.create_index("ix_rollout_agent_rollout_id", "rollout_agent", ["rollout_id", "state", "group_number"])


def downgrade() -> None:
    for table in (
        "rollout_agent",
        "rollout",
        "agent_package_piece",
        "agent_package",
        "agent_release",
        "agent_version",
    ):
        op.drop_table(table)
