"""What the audit log keeps."""

import pytest
from sqlalchemy import Connection, delete, insert, select, text, update

from controlplane_api.database import Database
from controlplane_api.errors import DatabaseRefused
from controlplane_api.identity import audit
from controlplane_api.models import AuditEntry


def many_above(connection: Connection, entry: int = 10_000_000) -> None:
    """As if as many entries had followed as are kept."""
    values = {"at_us": 1, "actor": "", "action": "", "refused": "", "found": "", "tenant": "many"}
    connection.execute(insert(AuditEntry).values(id=entry, **values))


def test_audit_when_a_tenant_is_refused_again_and_again_then_only_its_oldest_refusals_go(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MAX_REFUSALS", 3)
    with database.write() as connection:
        audit.record(connection, "acme", "API", "revoke agent", found="db-1")
        audit.record(connection, "other", "agent a", "open a stream", refused="AGENT_UNKNOWN")
        for number in range(6):
            audit.record(connection, "acme", "agent b", "open a stream", refused="AGENT_REVOKED", found=str(number))
        many_above(connection)
        monkeypatch.setattr(audit, "LOOK_EVERY", 1)
        audit.record(connection, "acme", "API", "create token", found="another")
    with database.read() as connection:
        kept = [row.found for row in audit.newest(connection, "acme", 10)]
        others = audit.newest(connection, "other", 10)
    assert kept == ["another", "5", "4", "3", "db-1"]
    assert [row.refused for row in others] == ["AGENT_UNKNOWN"]


@pytest.mark.parametrize("word", ["UPDATE", "DELETE", "TRUNCATE"])
def test_audit_when_a_statement_changes_or_removes_what_is_in_it_then_the_database_refuses(
    word: str, database: Database
) -> None:
    with database.write() as connection:
        audit.record(connection, "acme", "API", "revoke agent", found="db-1")
        audit.record(connection, "acme", "agent b", "open a stream", refused="AGENT_REVOKED")
        done, refused = connection.execute(select(AuditEntry.id).order_by(AuditEntry.id)).scalars()
        many_above(connection, refused + audit.MAX_REFUSALS)
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
        assert len(connection.execute(select(AuditEntry.id)).all()) == 2
