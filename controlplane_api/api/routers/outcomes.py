"""Commands about several tables: which they name, and what became of each, as an operation."""

from collections.abc import Callable, Iterable

from menura.naming import TableName
from sqlalchemy import Connection

from controlplane_api import continuity_ledger, operations
from controlplane_api.api import queries, versions
from controlplane_api.api.openapi import Responses
from controlplane_api.api.requests import DumpRequest, NamedTable, TablePattern
from controlplane_api.api.views import Outcomes, OutcomeView, RefusalView
from controlplane_api.api.writing import TAGGED, Writing
from controlplane_api.dump_lives import DumpOptions
from controlplane_api.selection import Pattern, matching
from controlplane_api.syncs import Outcome

LOCATION = {"description": "Of the operation, which says how far each table is.", "schema": {"type": "string"}}
ACCEPTED: Responses = {202: {"headers": {**TAGGED[200]["headers"], "Location": LOCATION}}}


def named_tables(
    connection: Connection, source_id: int, tables: list[NamedTable] | TablePattern | str, *, synced: bool = True
) -> list[TableName] | None:
    """Each name once, in order; None for all. `synced`: a pattern is of tables that a sync was asked for."""
    if isinstance(tables, str):
        return None
    if isinstance(tables, TablePattern):
        return matching(connection, source_id, pattern_of(tables), synced=synced)
    return list(dict.fromkeys((named.database, named.table) for named in tables))


def pattern_of(request: TablePattern) -> Pattern:
    return Pattern(request.database, request.table)


def dump_options(request: DumpRequest) -> DumpOptions:
    return DumpOptions(priority=request.priority, forced=request.force, **request.limits.model_dump())


def command_tables(
    write: Writing,
    tenant: str,
    source: str,
    kind: str,
    command: Callable[[Connection, int], list[Outcome]],
    ordered: str = "",
) -> Outcomes:
    """Carry a command about tables out, as an operation of this kind; the answer's Location is its address.

    `ordered`: what the tables' ledgers say of it, where that is not the kind.
    """

    def act(connection: Connection) -> Outcomes:
        source_id = queries.source_row(connection, tenant, source).id
        outcomes = command(connection, source_id)
        operation = operations.record(connection, source_id, kind, outcomes)
        continuity_ledger.record_command(connection, source_id, ordered or kind, write.actor, changed_tables(outcomes))
        return outcomes_view(connection, tenant, source, outcomes, operation)

    answer = write.run(Outcomes, act, versions.of_source(tenant, source))
    if not write.dry_run:
        base = f"/api/v1/tenants/{tenant}/sources/{source}"
        write.response.headers["location"] = f"{base}/operations/{answer.operation}"
    return answer


def changed_tables(outcomes: Iterable[Outcome]) -> list[TableName]:
    return [(outcome.database, outcome.table) for outcome in outcomes if outcome.changed]


def outcomes_view(
    connection: Connection, tenant: str, source: str, outcomes: list[Outcome], operation: str = ""
) -> Outcomes:
    return Outcomes(
        source=source,
        generation=queries.source_row(connection, tenant, source).generation,
        operation=operation,
        tables=[_outcome(outcome) for outcome in outcomes],
    )


def _outcome(outcome: Outcome) -> OutcomeView:
    refused = None
    if outcome.refused is not None:
        names = ("code", "doing", "found", "data", "remedy")
        refused = RefusalView(**{name: getattr(outcome.refused, name) for name in names})
    return OutcomeView(
        database=outcome.database,
        table=outcome.table,
        changed=outcome.changed,
        notice=outcome.notice,
        refused=refused,
        dump=outcome.dump,
    )
