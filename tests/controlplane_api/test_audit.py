"""What the audit log keeps."""

import pytest

from controlplane_api.database import Database
from controlplane_api.identity import audit


def test_audit_when_a_tenant_is_refused_again_and_again_then_only_its_oldest_refusals_go(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MAX_REFUSALS", 3)
    monkeypatch.setattr(audit, "LOOK_EVERY", 1)
    with database.write() as connection:
        audit.record(connection, "acme", "API", "revoke agent", found="db-1")
        audit.record(connection, "other", "agent a", "open a stream", refused="AGENT_UNKNOWN")
        for number in range(6):
            audit.record(connection, "acme", "agent b", "open a stream", refused="AGENT_REVOKED", found=str(number))
        audit.record(connection, "acme", "API", "create token", found="another")
    with database.read() as connection:
        kept = [row.found for row in audit.newest(connection, "acme", 10)]
        others = audit.newest(connection, "other", 10)
    assert kept == ["another", "5", "4", "3", "db-1"]
    assert [row.refused for row in others] == ["AGENT_UNKNOWN"]
