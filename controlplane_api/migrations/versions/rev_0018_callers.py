"""Who calls the API: tokens of people and scripts, and the sessions of browsers."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DOCUMENT = sa.JSON(none_as_null=True)


def upgrade() -> None:
    op.create_table(
        "api_token",
        sa.Column("id", ID, nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("secret_argon2", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("tenant_id", ID, nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_at_us", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at_us", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_api_token_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_token")),
        sa.UniqueConstraint("token", name=op.f("uq_api_token_token")),
    )
    op.create_index(op.f("ix_api_token_tenant_id"), "api_token", ["tenant_id"])
    op.create_table(
        "web_session",
        sa.Column("id", ID, nullable=False),
        sa.Column("secret_sha256", sa.Text(), nullable=False),
        sa.Column("link", sa.Boolean(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("grants", DOCUMENT, nullable=False),
        sa.Column("token_id", ID, nullable=True),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_at_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["token_id"], ["api_token.id"], name=op.f("fk_web_session_token_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_web_session")),
        sa.UniqueConstraint("secret_sha256", name=op.f("uq_web_session_secret_sha256")),
    )
    op.create_index(op.f("ix_web_session_actor"), "web_session", ["actor"])
    op.create_index(op.f("ix_web_session_token_id"), "web_session", ["token_id"])


def downgrade() -> None:
    for table in ("web_session", "api_token"):
        op.drop_table(table)
