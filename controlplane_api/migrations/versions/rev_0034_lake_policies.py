"""Policies of lakes for schema changes of their tables."""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TABLE = ("tenant", "source", "database", "name")


def upgrade() -> None:
    op.create_table(
        "lake_policy",
        sa.Column("lake_id", ID, nullable=False, autoincrement=False),
        *[sa.Column(name, sa.Text(), nullable=False) for name in (*TABLE, "said")],
        sa.PrimaryKeyConstraint("lake_id", *TABLE, name=op.f("pk_lake_policy")),
        sa.ForeignKeyConstraint(["lake_id"], ["lake.id"], name=op.f("fk_lake_policy_lake_id")),
    )
    op.create_index(op.f("ix_lake_policy_tenant"), "lake_policy", TABLE)


def downgrade() -> None:
    op.drop_index(op.f("ix_lake_policy_tenant"), "lake_policy")
    op.drop_table("lake_policy")
