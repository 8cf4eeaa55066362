"""The audit log tells what has failed beside what was refused; an index has the order in which it is searched."""

import sqlalchemy as sa
from alembic import op

revision = "0045"
down_revision = "0044"


def upgrade() -> None:
    op.add_column("audit", sa.Column("failed", sa.Boolean(), nullable=False, server_default=sa.false()))
    # `migrating.build_indexes` may have built it before this transaction, which locks the table.
    op.create_index("ix_audit_tenant_id", "audit", ["tenant", "id"], if_not_exists=True)
    op.drop_index("ix_audit_tenant", "audit")


def downgrade() -> None:
    op.create_index("ix_audit_tenant", "audit", ["tenant"])
    op.drop_index("ix_audit_tenant_id", "audit")
    op.drop_column("audit", "failed")
