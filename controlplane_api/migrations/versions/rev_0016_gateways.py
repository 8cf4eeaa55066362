"""Several gateways over one log: which landing it is, a lease for each gateway, owners of sources with epochs."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"

OF_LEASE = (
    ("run", sa.Text(), ""),
    ("session", sa.Text(), ""),
    ("released", sa.Boolean(), sa.false()),
    ("taken_epoch", sa.BigInteger(), "0"),
    ("logged_epoch", sa.BigInteger(), "0"),
)


def upgrade() -> None:
    op.add_column("landing", sa.Column("identity", sa.Text(), nullable=True))
    op.create_table(
        "gateway",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("expires_at_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_gateway")),
    )
    for name, kind, default in OF_LEASE:
        op.add_column("lease", sa.Column(name, kind, nullable=False, server_default=default))
    op.drop_column("lease", "expires_at_us")


def downgrade() -> None:
    op.add_column("lease", sa.Column("expires_at_us", sa.BigInteger(), nullable=False, server_default="0"))
    for name, _, _ in reversed(OF_LEASE):
        op.drop_column("lease", name)
    op.drop_table("gateway")
    op.drop_column("landing", "identity")
