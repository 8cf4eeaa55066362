"""Sources of which the cut log has cuts that the database refuses."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DOCUMENT = sa.JSON(none_as_null=True)


def upgrade() -> None:
    op.create_table(
        "quarantine",
        sa.Column("source_id", ID, autoincrement=False, nullable=False),
        sa.Column("landing", sa.Text(), nullable=False),
        sa.Column("entry", sa.BigInteger(), nullable=False),
        sa.Column("cut", sa.BigInteger(), nullable=False),
        sa.Column("last_entry", sa.BigInteger(), nullable=False),
        sa.Column("last_cut", sa.BigInteger(), nullable=False),
        sa.Column("problem", DOCUMENT, nullable=False),
        sa.Column("after", DOCUMENT, nullable=False),
        sa.Column("tables", DOCUMENT, nullable=True),
        sa.Column("retry", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["source_id"], ["source.id"], name=op.f("fk_quarantine_source_id")),
        sa.PrimaryKeyConstraint("source_id", name=op.f("pk_quarantine")),
    )


def downgrade() -> None:
    op.drop_table("quarantine")
