"""Verifications of tables in a stack: ordered by the API, and what the lake has found."""

from typing import Any

from spark_sink.lake.digests import Verdict
from spark_sink.lake.validation_records import DUE, ValidationRecords
from tests.stack import Stack, wait_for

EQUAL = ("equal", "", None)


def wait_until_verified(running: Stack, source: str, database: str, table: str, seconds: float = 600) -> None:
    """Until a verification of the table says that it is equal; none may say that leaves of it differ."""

    def probe() -> bool:
        (found,) = verdicts(running, source, database, table).values()
        # what Spark did again on a busy machine is not known
        assert found[0] in (Verdict.EQUAL, Verdict.UNKNOWN) and found[2] is None, found
        return bool(found == EQUAL)

    wait_for(f"{table} to be verified", probe, seconds)


def verdicts(running: Stack, source: str, database: str, *tables: str, seconds: float = 600) -> dict[str, Any]:
    """Of each table, verified now: what it is, and why."""
    named = [{"database": database, "table": table} for table in tables]
    path = f"/api/v1/tenants/{running.tenant}/sources/{source}/verifications"
    outcomes = running.post(path, {"tables": named})["tables"]
    assert all(outcome["refused"] is None for outcome in outcomes), outcomes
    wanted = {outcome["dump"]: outcome["table"] for outcome in outcomes}
    records = ValidationRecords(str(running.lake))

    def probe() -> dict[str, Any] | None:
        rows = [row for row in records.rows() if row["verification"] in wanted and row["chunk"] is None]
        found = {wanted[row["verification"]]: row for row in rows if row["verdict"] != DUE}
        return found if len(found) == len(wanted) else None

    found = wait_for("the verdicts", probe, seconds)
    return {table: (row["verdict"], row["reason"], row["leaves"]) for table, row in found.items()}
