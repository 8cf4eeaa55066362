"""PostgreSQL tells gateways at once when somebody has changed what is asked of agents, or who they are.

Statement by statement, without a payload: of one transaction listeners get one notification, and look themselves.
"""

from alembic import op

revision = "0017"
down_revision = "0016"

TELL = """
CREATE FUNCTION menura_tell_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('menura_changes', '');
    RETURN NULL;
END $$
"""
TRIGGERS = (
    ("source", "INSERT OR UPDATE OF generation, dump_generation, agent_id"),
    ("agent", "INSERT OR UPDATE OF key_sha256, enrolled_at_us, revoked_at_us"),
)


def upgrade() -> None:
    if op.get_context().dialect.name != "postgresql":
        return
    op.execute(TELL)
    for table, events in TRIGGERS:
        op.execute(
            f"CREATE TRIGGER menura_tell_change AFTER {events} ON {table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION menura_tell_change()"
        )


def downgrade() -> None:
    if op.get_context().dialect.name != "postgresql":
        return
    for table, _ in TRIGGERS:
        op.execute(f"DROP TRIGGER menura_tell_change ON {table}")
    op.execute("DROP FUNCTION menura_tell_change()")
