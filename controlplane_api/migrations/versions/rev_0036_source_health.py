"""What heartbeats say further of a source: CPU, restarts, credit, and how long its server keeps its log."""

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"

COLUMNS = ("decode_cpu_us", "restarts", "credit_bytes", "log_retention_seconds", "log_room_bytes")


def upgrade() -> None:
    for column in COLUMNS:
        op.add_column("source_health", sa.Column(column, sa.BigInteger(), nullable=True))


def downgrade() -> None:
    for column in COLUMNS:
        op.drop_column("source_health", column)
