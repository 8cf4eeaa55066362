"""Which tables of a source can be verified, and how old what is known of each is, as one SELECT.

Comes in: a source, or all. Goes out: a statement over the tables that are synced or ever were, for the schedule that
takes the next one and for what is shown. Nothing is written.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, SQLColumnExpression, and_, case, exists, func, or_, select
from sqlalchemy.orm import aliased

from controlplane_api.dump_lives import VERIFICATION
from controlplane_api.models import AnyRow, Dump, ProofOfTable, Source, SourceTable, Sync, Tenant, VerificationSchedule
from controlplane_api.states import Coverage, Desired, DumpEnd, Proof

#: why a table can't be verified now; `why` names one of them, empty: it can be
REASONS: Mapping[str, str] = {
    "stopped": "its sync is stopped",
    "denied": "the policy of its agent's host denies it",
    "gone": "it is no longer on the server",
    "failed": "its sync has failed",
    "not_begun": "its sync has not begun",
    "rows_missing": "the lake lacks rows of it",
    "refused": "its last verification failed",
}

_REFUSED, _LATER = aliased(Dump), aliased(Dump)
IS_ASKED = Sync.desired == Desired.SYNCING
WHY: ColumnElement[str] = case(
    (~IS_ASKED, "stopped"),
    (SourceTable.denied.is_(True), "denied"),
    (SourceTable.gone.is_(True), "gone"),
    (Sync.failed.is_(True), "failed"),
    (Sync.start.is_not(None), "not_begun"),
    (Sync.earlier_rows_missing != "", "rows_missing"),
    (_REFUSED.id.is_not(None), "refused"),
    else_="",
)
KNOWN_AT_US = func.coalesce(ProofOfTable.known_at_us, 0)
PROVEN_AT_US = func.coalesce(ProofOfTable.proven_at_us, 0)
ESTIMATED_ROWS = func.coalesce(SourceTable.estimated_rows, 0)


def tables(connection: Connection, source_id: int, *columns: SQLColumnExpression[Any]) -> Select[*tuple[Any, ...]]:
    """These columns of the source's tables, which may be those below."""
    tenant, source = connection.execute(
        select(Tenant.name, Source.name).join_from(Source, Tenant).where(Source.id == source_id)
    ).one()
    of_source = select(*columns).join_from(Sync, SourceTable, SourceTable.id == Sync.table_id)
    return _with_what_is_known(of_source, tenant, source, source_id).where(Sync.source_id == source_id)


def tables_of_sources(*columns: SQLColumnExpression[Any]) -> Select[*tuple[Any, ...]]:
    """The same of all sources; `Source`, `Tenant` and `VerificationSchedule` may be among these columns."""
    of_all = (
        select(*columns)
        .join_from(Sync, SourceTable, SourceTable.id == Sync.table_id)
        .join(Source, Source.id == Sync.source_id)
        .join(Tenant, Tenant.id == Source.tenant_id)
        .outerjoin(VerificationSchedule, VerificationSchedule.source_id == Source.id)
    )
    return _with_what_is_known(of_all, Tenant.name, Source.name, Source.id)


def _with_what_is_known(
    statement: Select[*tuple[Any, ...]],
    tenant: str | SQLColumnExpression[str],
    source: str | SQLColumnExpression[str],
    source_id: int | SQLColumnExpression[int],
) -> Select[*tuple[Any, ...]]:
    is_last = ~exists(1).where(
        _LATER.table_id == _REFUSED.table_id, _LATER.cause == VERIFICATION, _LATER.id > _REFUSED.id
    )
    return statement.outerjoin(
        ProofOfTable,
        and_(
            ProofOfTable.tenant == tenant, ProofOfTable.source == source,
            ProofOfTable.database == SourceTable.database, ProofOfTable.name == SourceTable.name,
        ),
    ).outerjoin(
        _REFUSED,
        and_(
            _REFUSED.table_id == Sync.table_id, _REFUSED.source_id == source_id, _REFUSED.cause == VERIFICATION,
            _REFUSED.state.in_((DumpEnd.FAILED, DumpEnd.REFUSED)), is_last,
        ),
    )  # fmt: skip


#: of the last verification, where that is `why`
PROBLEM = _REFUSED.problem.label("verification_problem")


def coverage(since_us: int | SQLColumnExpression[int]) -> ColumnElement[str]:
    """A `Coverage`: what is known of a table, where a proof counts that is not older than this."""
    return case(
        (ProofOfTable.state == Proof.DIFFERS, Coverage.DIFFERS.value),
        (WHY != "", Coverage.UNPROVABLE.value),
        (ProofOfTable.state.is_(None), Coverage.NEVER.value),
        (and_(ProofOfTable.state == Proof.EQUAL, since_us <= PROVEN_AT_US), Coverage.PROVEN.value),
        else_=Coverage.UNPROVEN.value,
    )


def why_not(row: AnyRow) -> str:
    """Of a row with `why`, `earlier_rows_missing` and `verification_problem`; empty: it can be verified."""
    detail = ""
    if row.why == "rows_missing":
        detail = row.earlier_rows_missing
    elif row.why == "refused" and row.verification_problem:
        detail = row.verification_problem["message"]
    return f"{REASONS[row.why]}{': ' if detail else ''}{detail}" if row.why else ""


def is_out_of(at: SQLColumnExpression[int], after_us: int, until_us: int) -> ColumnElement[bool]:
    """Whether a time is before the one, or after the other: then a clock was wrong."""
    return or_(at < after_us, at > until_us)
