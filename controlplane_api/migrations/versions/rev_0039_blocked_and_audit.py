"""Sources whose committed cuts wait for a lock; and the database refuses changes of the audit log.

What retention removes has at least as many entries above it as are kept of its kind: so much is not refused.
"""

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"

#: `identity.audit`: of what was refused, and of what was done
_KEPT = "CASE WHEN OLD.refused = '' THEN 1000000 ELSE 100000 END"
_IS_OVER = f"OLD.id <= (SELECT MAX(id) FROM audit) - {_KEPT}"  # noqa: S608  (of this file alone)
_REFUSED = "the audit log is only added to"

POSTGRESQL = (
    f"""
CREATE FUNCTION menura_keep_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF ({_IS_OVER}) THEN
            RETURN OLD;
        END IF;
    END IF;
    RAISE EXCEPTION '{_REFUSED}' USING ERRCODE = 'restrict_violation';
END $$
""",
    "CREATE TRIGGER menura_keep_audit BEFORE UPDATE OR DELETE ON audit"
    " FOR EACH ROW EXECUTE FUNCTION menura_keep_audit()",
    "CREATE TRIGGER menura_keep_audit_whole BEFORE TRUNCATE ON audit EXECUTE FUNCTION menura_keep_audit()",
)
SQLITE = (
    f"CREATE TRIGGER menura_keep_audit BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, '{_REFUSED}'); END",
    f"CREATE TRIGGER menura_keep_audit_rows BEFORE DELETE ON audit WHEN NOT ({_IS_OVER})"
    f" BEGIN SELECT RAISE(ABORT, '{_REFUSED}'); END",
)


def upgrade() -> None:
    op.create_table(
        "blocked_source",
        sa.Column("landing", sa.Text(), primary_key=True),
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("source", sa.Text(), primary_key=True),
        sa.Column("entry", sa.BigInteger(), nullable=False),
        sa.Column("last_entry", sa.BigInteger(), nullable=False),
    )
    for statement in POSTGRESQL if _is_postgresql() else SQLITE:
        op.execute(statement)


def downgrade() -> None:
    if _is_postgresql():
        op.execute("DROP TRIGGER menura_keep_audit ON audit")
        op.execute("DROP TRIGGER menura_keep_audit_whole ON audit")
        op.execute("DROP FUNCTION menura_keep_audit()")
    else:
        op.execute("DROP TRIGGER menura_keep_audit")
        op.execute("DROP TRIGGER menura_keep_audit_rows")
    op.drop_table("blocked_source")


def _is_postgresql() -> bool:
    return op.get_context().dialect.name == "postgresql"
