"""Joined views, and what sinks report of them."""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
KEY = ("tenant", "name")


def _texts(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]


def _numbers(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger(), nullable=False) for name in names]


def upgrade() -> None:
    op.create_table(
        "joined_view",
        sa.Column("id", ID, nullable=False),
        sa.Column("tenant_id", ID, nullable=False),
        *_numbers("version", "created_at_us", "changed_at_us"),
        *_texts("name", "sql", "digest"),
        sa.Column("tables", sa.JSON(), nullable=False),
        sa.Column("views", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_joined_view")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_joined_view_tenant_id")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_joined_view_tenant_id")),
    )
    op.create_table(
        "lake_joined_view",
        sa.Column("lake_id", ID, nullable=False, autoincrement=False),
        *_texts(*KEY, "digest", "state", "code", "message"),
        sa.Column("cuts", sa.JSON(), nullable=False),
        *_numbers("lake_version", "rows", "changes", "applied_at_us"),
        sa.PrimaryKeyConstraint("lake_id", *KEY, name=op.f("pk_lake_joined_view")),
        sa.ForeignKeyConstraint(["lake_id"], ["lake.id"], name=op.f("fk_lake_joined_view_lake_id")),
    )


def downgrade() -> None:
    op.drop_table("lake_joined_view")
    op.drop_table("joined_view")
