"""What agents say of columns that stay on the database's host, so that what is given free is read again."""

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"


def upgrade() -> None:
    op.add_column("sync", sa.Column("withheld", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("sync", "withheld")
