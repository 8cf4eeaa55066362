"""What may be removed of the audit log is judged tenant by tenant; and which tables an ended cartography has had.

Entries of a tenant have numbers: 1, 2, 3 of what was done, -1, -2, -3 of what was refused. PostgreSQL's function looks
at the table that its trigger stands at: a temporary table named `audit` is another one.
"""

import sqlalchemy as sa
from alembic import op

from controlplane_api.migrations.versions import rev_0039_blocked_and_audit as former

revision = "0040"
down_revision = "0039"

#: `identity.audit`: of what was done, and of what was refused
_DONE, _REFUSALS = 1_000_000, 100_000
_REFUSED = "the audit log is only added to"
_NUMBERS = """
UPDATE audit SET number = numbered.number FROM (
    SELECT id, CASE WHEN refused = '' THEN 1 ELSE -1 END
        * ROW_NUMBER() OVER (PARTITION BY tenant, refused = '' ORDER BY id) AS number FROM audit
) AS numbered WHERE numbered.id = audit.id
"""


def _is_over(number: str, tenant: str, table: str) -> str:
    """As many of its kind and tenant are above it as are kept."""
    of_tenant = f"(number) FROM {table} WHERE tenant = {tenant})"
    done, refused = f"(SELECT MAX{of_tenant} - {_DONE}", f"(SELECT MIN{of_tenant} + {_REFUSALS}"
    return f"CASE WHEN {number} > 0 THEN {number} <= {done} ELSE {number} >= {refused} END"


def _postgresql() -> tuple[str, ...]:
    asked = "SELECT " + _is_over("$1", "$2", "%1$I.%2$I").replace("'", "''")
    function = f"""
CREATE FUNCTION menura_keep_audit() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    is_over boolean;
BEGIN
    IF TG_OP = 'DELETE' THEN
        EXECUTE format('{asked}', TG_TABLE_SCHEMA, TG_TABLE_NAME) INTO is_over USING OLD.number, OLD.tenant;
        IF is_over THEN
            RETURN OLD;
        END IF;
    END IF;
    RAISE EXCEPTION '{_REFUSED}' USING ERRCODE = 'restrict_violation';
END $$
"""
    return (
        function,
        "CREATE TRIGGER menura_keep_audit BEFORE UPDATE OR DELETE ON audit"
        " FOR EACH ROW EXECUTE FUNCTION menura_keep_audit()",
        "CREATE TRIGGER menura_keep_audit_whole BEFORE TRUNCATE ON audit EXECUTE FUNCTION menura_keep_audit()",
    )


_SQLITE = (
    f"CREATE TRIGGER menura_keep_audit BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, '{_REFUSED}'); END",
    f"CREATE TRIGGER menura_keep_audit_rows BEFORE DELETE ON audit"
    f" WHEN NOT ({_is_over('OLD.number', 'OLD.tenant', 'audit')}) BEGIN SELECT RAISE(ABORT, '{_REFUSED}'); END",
)


def upgrade() -> None:
    drop_triggers()
    op.add_column("audit", sa.Column("number", sa.BigInteger(), nullable=False, server_default="0"))
    op.execute(_NUMBERS)
    op.create_index(op.f("ix_audit_tenant_number"), "audit", ["tenant", "number"])
    for statement in _postgresql() if _is_postgresql() else _SQLITE:
        op.execute(statement)
    op.add_column("source", sa.Column("ended_table_id", sa.BigInteger(), nullable=False, server_default="0"))
    # Which of them an ended cartography has had is not known: all that are there.
    op.execute("UPDATE source SET ended_table_id = (SELECT COALESCE(MAX(id), 0) FROM source_table)")


def downgrade() -> None:
    drop_triggers()
    op.drop_index(op.f("ix_audit_tenant_number"), "audit")
    op.drop_column("audit", "number")
    for statement in former.POSTGRESQL if _is_postgresql() else former.SQLITE:
        op.execute(statement)
    op.drop_column("source", "ended_table_id")


def drop_triggers() -> None:
    if _is_postgresql():
        op.execute("DROP TRIGGER menura_keep_audit ON audit")
        op.execute("DROP TRIGGER menura_keep_audit_whole ON audit")
        op.execute("DROP FUNCTION menura_keep_audit()")
    else:
        op.execute("DROP TRIGGER menura_keep_audit")
        op.execute("DROP TRIGGER menura_keep_audit_rows")


def _is_postgresql() -> bool:
    return op.get_context().dialect.name == "postgresql"
