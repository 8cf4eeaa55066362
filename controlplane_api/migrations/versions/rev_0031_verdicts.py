"""What verifications have found of tables."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXTS = ("tenant", "source", "database", "name", "verification", "verdict", "reason", "position")
NUMBERS = ("cut", "source_rows", "lake_rows", "leaves_equal", "leaves_differ", "leaves_unknown")
TIMES = ("proven_at_us", "at_us", "received_at_us")


def upgrade() -> None:
    op.create_table(
        "verdict",
        sa.Column("id", ID, nullable=False),
        sa.Column("lake_id", ID, nullable=False),
        *[sa.Column(name, sa.Text(), nullable=False) for name in TEXTS],
        *[sa.Column(name, sa.BigInteger(), nullable=False) for name in NUMBERS],
        sa.Column("leaves", sa.JSON(none_as_null=True), nullable=False),
        *[sa.Column(name, sa.BigInteger(), nullable=False) for name in TIMES],
        sa.PrimaryKeyConstraint("id", name=op.f("pk_verdict")),
        sa.ForeignKeyConstraint(["lake_id"], ["lake.id"], name=op.f("fk_verdict_lake_id")),
        sa.UniqueConstraint(
            "lake_id", "tenant", "source", "database", "name", "verification", name=op.f("uq_verdict_lake_id")
        ),
    )
    op.create_index(op.f("ix_verdict_tenant"), "verdict", ["tenant", "source", "database", "name"])


def downgrade() -> None:
    op.drop_index(op.f("ix_verdict_tenant"), "verdict")
    op.drop_table("verdict")
