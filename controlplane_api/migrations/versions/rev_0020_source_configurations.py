"""Sources that the control plane configures, and tables that are wanted before their source is known."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DOCUMENT = sa.JSON(none_as_null=True)


def upgrade() -> None:
    op.add_column("agent", sa.Column("reported", sa.Text(), nullable=False, server_default=""))
    op.create_table(
        "source_configuration",
        sa.Column("source_id", ID, autoincrement=False, nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("changed_at_us", sa.BigInteger(), nullable=False),
        sa.Column("effective_generation", sa.BigInteger(), nullable=False),
        sa.Column("effective_sha256", sa.Text(), nullable=False),
        sa.Column("problem", DOCUMENT, nullable=True),
        sa.Column("told_at_us", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["source_id"], ["source.id"], name=op.f("fk_source_configuration_source_id")),
        sa.PrimaryKeyConstraint("source_id", name=op.f("pk_source_configuration")),
    )
    op.create_table(
        "wanted_table",
        sa.Column("source_id", ID, autoincrement=False, nullable=False),
        sa.Column("database", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("start", sa.Text(), nullable=False),
        sa.Column("options", DOCUMENT, nullable=False),
        sa.Column("problem", DOCUMENT, nullable=True),
        sa.ForeignKeyConstraint(["source_id"], ["source.id"], name=op.f("fk_wanted_table_source_id")),
        sa.PrimaryKeyConstraint("source_id", "database", "name", name=op.f("pk_wanted_table")),
    )
    if op.get_context().dialect.name == "postgresql":  # see revision 0017
        op.execute(
            "CREATE TRIGGER menura_tell_change AFTER INSERT OR DELETE OR UPDATE OF generation, sha256, document"
            " ON source_configuration FOR EACH STATEMENT EXECUTE FUNCTION menura_tell_change()"
        )


def downgrade() -> None:
    op.drop_table("wanted_table")
    op.drop_table("source_configuration")
    op.drop_column("agent", "reported")
