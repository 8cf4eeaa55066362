"""Foreign keys of tables, as looks at their servers show them.

Each agent is asked for its whole cartography: what it has told lacks them, and it tells again only what has changed.
"""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    keys = sa.Column("foreign_keys", sa.JSON(none_as_null=True), nullable=False, server_default="[]")
    op.add_column("source_table", keys)
    more = sa.Column("more_foreign_keys", sa.BigInteger(), nullable=False, server_default="0")
    op.add_column("source_table", more)
    op.execute("UPDATE source SET cartography_digest = ''")


def downgrade() -> None:
    op.drop_column("source_table", "more_foreign_keys")
    op.drop_column("source_table", "foreign_keys")
