"""From which cartography agents can tell differences."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    op.add_column("source", sa.Column("cartography_digest", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("source", "cartography_digest")
