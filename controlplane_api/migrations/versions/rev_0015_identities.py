"""Who agents are: their keys, what enrols and revokes them, the CA, and what was done and refused."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DOCUMENT = sa.JSON(none_as_null=True)
OF_AGENT = (
    ("key_sha256", sa.Text()),
    ("enrolled_at_us", sa.BigInteger()),
    ("revoked_at_us", sa.BigInteger()),
    ("problem", DOCUMENT),
)


def upgrade() -> None:
    for name, kind in OF_AGENT:
        op.add_column("agent", sa.Column(name, kind, nullable=True))
    op.create_table(
        "enrolment_token",
        sa.Column("id", ID, nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("secret_sha256", sa.Text(), nullable=False),
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_at_us", sa.BigInteger(), nullable=False),
        sa.Column("used_at_us", sa.BigInteger(), nullable=True),
        sa.Column("used_by", sa.Text(), nullable=False),
        sa.Column("revoked_at_us", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_enrolment_token_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_enrolment_token")),
        sa.UniqueConstraint("token", name=op.f("uq_enrolment_token_token")),
    )
    op.create_index(op.f("ix_enrolment_token_tenant_id"), "enrolment_token", ["tenant_id"])
    op.create_table(
        "certificate_authority",
        sa.Column("id", ID, autoincrement=False, nullable=False),
        sa.Column("certificate_pem", sa.Text(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_certificate_authority")),
    )
    op.create_table(
        "audit",
        sa.Column("id", ID, nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("refused", sa.Text(), nullable=False),
        sa.Column("found", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_tenant"), "audit", ["tenant"])


def downgrade() -> None:
    for table in ("audit", "certificate_authority", "enrolment_token"):
        op.drop_table(table)
    for name, _ in reversed(OF_AGENT):
        op.drop_column("agent", name)
