"""What the audit log keeps."""

import pytest
from sqlalchemy import Connection, delete, insert, select, text, update

from controlplane_api.database import Database, _engine
from controlplane_api.errors import DatabaseRefused
from controlplane_api.identity import audit
from controlplane_api.migrating import upgrade
from controlplane_api.models import AuditEntry


def many_above(connection: Connection, number: int, tenant: str = "acme") -> None:
    """As if so many entries of the tenant, or refusals where it is negative, had been there."""
    refused = "AGENT_REVOKED" if number < 0 else ""
    values = {"at_us": 1, "actor": "", "action": "", "refused": refused, "found": "", "tenant": tenant}
    place = {} if tenant == "acme" else {"id": 100 * audit.MAX_DONE + len(tenant)}
    connection.execute(insert(AuditEntry).values(number=number, **values, **place))


def test_audit_when_a_tenant_is_refused_again_and_again_then_only_its_oldest_refusals_go(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "LOOK_EVERY", 1)
    with database.write() as connection:
        audit.record(connection, "acme", "API", "revoke agent", found="db-1")
        audit.record(connection, "other", "agent a", "open a stream", refused="AGENT_UNKNOWN")
        for number in range(6):
            audit.record(connection, "acme", "agent b", "open a stream", refused="AGENT_REVOKED", found=str(number))
        many_above(connection, -(audit.MAX_REFUSALS + 2))
        audit.record(connection, "acme", "agent b", "open a stream", refused="AGENT_REVOKED", found="6")
        audit.record(connection, "acme", "API", "create token", found="another")
    with database.read() as connection:
        kept = [row.found for row in audit.search(connection, "acme", 10).rows]
        others = audit.search(connection, "other", 10).rows
    assert kept == ["another", "6", "", "5", "4", "3", "db-1"]
    assert [row.refused for row in others] == ["AGENT_UNKNOWN"]


@pytest.mark.parametrize("word", ["UPDATE", "DELETE", "TRUNCATE"])
def test_audit_when_a_statement_changes_or_removes_what_is_in_it_then_the_database_refuses(
    word: str, database: Database
) -> None:
    with database.write() as connection:
        audit.record(connection, "acme", "API", "revoke agent", found="db-1")
        audit.record(connection, "acme", "agent b", "open a stream", refused="AGENT_REVOKED")
        done, refused = connection.execute(select(AuditEntry.id).order_by(AuditEntry.id)).scalars()
        many_above(connection, -1 - audit.MAX_REFUSALS)
        for tenant in ("other", "another"):
            many_above(connection, 10 * audit.MAX_DONE, tenant)
    statements = {
        "UPDATE": update(AuditEntry).values(actor="nobody"),
        "DELETE": delete(AuditEntry).where(AuditEntry.id == done),
        # SQLite has none
        "TRUNCATE": delete(AuditEntry) if database.file else text("TRUNCATE audit"),
    }
    with pytest.raises(DatabaseRefused, match="the audit log is only added to"), database.write() as connection:
        connection.execute(statements[word])
    with database.write() as connection:  # as many are above it as are kept of refusals
        connection.execute(delete(AuditEntry).where(AuditEntry.id == refused))
        assert len(connection.execute(select(AuditEntry.id)).all()) == 4


def test_audit_when_somebody_has_a_temporary_table_of_its_name_then_the_database_looks_at_its_own(
    database: Database,
) -> None:
    with database.write() as connection:
        audit.record(connection, "acme", "API", "revoke agent", found="db-1")
    own, theirs = ("main", "temp") if database.file else ("public", "pg_temp")
    with pytest.raises(DatabaseRefused, match="the audit log is only added to"), database.write() as connection:
        connection.execute(text(f"CREATE TEMPORARY TABLE audit AS SELECT * FROM {own}.audit"))
        connection.execute(text(f"UPDATE {theirs}.audit SET id = 10000000, number = 10000000"))
        connection.execute(text(f"DELETE FROM {own}.audit"))


def test_audit_when_an_older_version_has_written_it_then_its_entries_have_numbers(empty_url: str) -> None:
    database = Database(_engine(empty_url))
    with database.write() as connection:
        upgrade(connection, "0039")
        for refused in ("", "X", "", "Y"):
            for tenant in ("acme", "other"):
                values = {"at_us": 1, "actor": "", "action": "", "refused": refused, "found": "", "tenant": tenant}
                connection.execute(insert(AuditEntry).values(values))
    with database.write() as connection:
        upgrade(connection)
    with database.read() as connection:
        numbers = connection.execute(select(AuditEntry.tenant, AuditEntry.number).order_by(AuditEntry.id)).all()
    database.close()
    assert numbers == [(tenant, number) for number in (1, -1, 2, -2) for tenant in ("acme", "other")]
