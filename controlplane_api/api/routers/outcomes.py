"""Commands about several tables: which they name, and what became of each."""

from menura.naming import TableName
from sqlalchemy import Connection

from controlplane_api.api import queries
from controlplane_api.api.requests import DumpRequest, NamedTable
from controlplane_api.api.views import Outcomes, OutcomeView, RefusalView
from controlplane_api.dump_lives import DumpOptions
from controlplane_api.syncs import Outcome


def named_tables(tables: list[NamedTable] | str) -> list[TableName] | None:
    """Each name once, in order; None for all."""
    if isinstance(tables, str):
        return None
    return list(dict.fromkeys((named.database, named.table) for named in tables))


def dump_options(request: DumpRequest) -> DumpOptions:
    return DumpOptions(priority=request.priority, forced=request.force, **request.limits.model_dump())


def outcomes_view(connection: Connection, tenant: str, source: str, outcomes: list[Outcome]) -> Outcomes:
    return Outcomes(
        source=source,
        generation=queries.source_row(connection, tenant, source).generation,
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
