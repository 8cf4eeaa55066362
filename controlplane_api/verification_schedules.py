"""Verifications that are ordered by themselves, so that each table of a source is proven once in a period.

Comes in: a source's schedule, its tables, and the time. Goes out: at most one verification a call, of the table whose
last one is the longest ago, and when the next may be ordered; both in one transaction that holds the source's row, so
that of several gateways one orders. The gateway that owns the source asks: where no agent is, nothing piles up.

- One verification of a source runs at a time, of whoever has ordered it, and orders are spread over the period: a
  control plane that was away goes on at the same pace.
- A table is due when what is known of it is older than `DUE` of the period, so that a proof is renewed while it counts.
- A time that is further ahead than a period is of a clock that was wrong. Any other one ahead is of a clock that went
  back: nothing is ordered before the clock is there again.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction

from menura.windows import Window, WindowInvalid
from sqlalchemy import ColumnElement, Connection, delete, exists, func, or_, select, tuple_, update

from controlplane_api import verification_states
from controlplane_api.documents import insert_into
from controlplane_api.dump_lives import MOST_PROOFS, REPAIR, VERIFICATION, DumpOptions, delete_dumps
from controlplane_api.errors import RequestInvalid
from controlplane_api.models import AnyRow, Dump, Lease, Source, SourceTable, Sync, Tenant, VerificationSchedule
from controlplane_api.selection import Pattern
from controlplane_api.states import DumpEnd
from controlplane_api.syncs import lock_source
from controlplane_api.verifications import start_verifications

logger = logging.getLogger(__name__)

#: parts of a period: how old what is known of a table may be; how long all tables take; between two tries of one table
DUE, PASS, RETRY = Fraction(7, 8), Fraction(3, 4), Fraction(1, 8)
LEAST_SPACING_US = 1_000_000
#: until it is looked again where no table is due
IDLE_US = 60_000_000
DAY_US = 86_400_000_000
#: sources that one call looks at
SOURCES_AT_ONCE = 100
#: tables that are looked at by one statement where a pattern chooses
LOOKED = 1_000
#: verifications of a table that are remembered when one more is ordered, if it was never repaired
KEPT_VERIFICATIONS = 5
#: dumps and verifications that somebody has ordered go first
PRIORITY = -100

EVERY_TABLE = Pattern()


@dataclass(frozen=True, slots=True)
class Schedule:
    every_seconds: int
    pattern: Pattern = EVERY_TABLE
    #: of each verification; 0: only the agent's own limit
    rows_per_second: int = 0
    #: as `menura.windows` reads it; empty: at any time
    window: str = ""


def put(connection: Connection, source_id: int, schedule: Schedule, at_us: int) -> bool:
    """Whether something changed: it stands in place of the source's former one, whose row gets locked.

    Raises `RequestInvalid` for a window that is none.
    """
    try:
        window = str(Window.parse(schedule.window)) if schedule.window else ""
    except WindowInvalid as invalid:
        raise RequestInvalid(
            "setting a schedule of verifications",
            f"the window {invalid}",
            data="Nothing was changed.",
            remedy="Give it as 22:00-05:00 or 22:00-05:00 Europe/Berlin; without a zone it is in UTC.",
        ) from invalid
    lock_source(connection, source_id)
    values = {
        "every_seconds": schedule.every_seconds, "database": schedule.pattern.database,
        "name": schedule.pattern.table, "rows_per_second": schedule.rows_per_second, "window": window,
    }  # fmt: skip
    former = of_source(connection, source_id)
    if former is not None and all(getattr(former, name) == value for name, value in values.items()):
        return False
    values |= {"changed_at_us": at_us, "next_at_us": at_us}
    statement = insert_into(connection, VerificationSchedule).values(source_id=source_id, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=[VerificationSchedule.source_id], set_=values))
    return True


def remove(connection: Connection, source_id: int) -> bool:
    """Whether there was one. A verification that runs goes on; the source's row gets locked."""
    lock_source(connection, source_id)
    gone = connection.execute(delete(VerificationSchedule).where(VerificationSchedule.source_id == source_id))
    return gone.rowcount > 0


def of_source(connection: Connection, source_id: int) -> AnyRow | None:
    return connection.execute(select(VerificationSchedule).where(VerificationSchedule.source_id == source_id)).first()


def due_sources(connection: Connection, is_owned: ColumnElement[bool], at_us: int) -> Sequence[int]:
    """Sources whose turn it is, among those whose `Lease` is so; the longest ago first."""
    next_at_us = VerificationSchedule.next_at_us
    farthest_us = VerificationSchedule.every_seconds * 1_000_000 + DAY_US
    statement = (
        select(VerificationSchedule.source_id)
        .join(Source, Source.id == VerificationSchedule.source_id)
        .join(Tenant, Tenant.id == Source.tenant_id)
        .join(Lease, (Lease.tenant == Tenant.name) & (Lease.source == Source.name))
        .where(is_owned, or_(next_at_us <= at_us, next_at_us > at_us + farthest_us))
        .order_by(next_at_us)
        .limit(SOURCES_AT_ONCE)
    )
    return connection.execute(statement).scalars().all()


def order_next(connection: Connection, source_id: int, at_us: int) -> str:
    """The UUID of the verification that was ordered; empty: it is no table's turn. The source's row gets locked."""
    lock_source(connection, source_id)
    row = of_source(connection, source_id)
    if row is None or at_us < row.next_at_us <= at_us + _farthest_us(row.every_seconds):
        return ""  # it was changed since it was looked at
    if row.next_at_us > at_us:
        _wait_until(connection, row, at_us + _spacing_us(connection, row))
        return ""
    if opens_at_us := _opens_at_us(row, at_us):
        _wait_until(connection, row, opens_at_us)
        return ""
    if _runs(connection, source_id):
        return ""
    table = _next_table(connection, row, at_us)
    if table is None:
        _wait_until(connection, row, at_us + IDLE_US)
        return ""
    return _order(connection, row, table, at_us)


def reading(connection: Connection, source_id: int, at_us: int) -> tuple[DumpOptions, int]:
    """How a verification that nobody has asked for reads the source: as its schedule has it, if there is one; and after
    how many seconds its window is open."""
    row = of_source(connection, source_id)
    opens_at_us = _opens_at_us(row, at_us) if row is not None else 0
    return _options(row), -(-max(0, opens_at_us - at_us) // 1_000_000)


def _options(row: AnyRow | None) -> DumpOptions:
    # it needs no log: nothing of it is replayed
    return DumpOptions(priority=PRIORITY, rows_per_second=row.rows_per_second if row is not None else 0, forced=True)


def _order(connection: Connection, row: AnyRow, table: AnyRow, at_us: int) -> str:
    (outcome,) = start_verifications(connection, row.source_id, [(table.database, table.name)], _options(row))
    ordered = {"verification_ordered_at_us": at_us}
    connection.execute(update(Sync).where(Sync.table_id == table.table_id).values(ordered))
    _wait_until(connection, row, at_us + _spacing_us(connection, row))
    if outcome.refused is not None:
        logger.warning("scheduled verification refused: source_id=%d: %s", row.source_id, outcome.refused)
        return ""
    _forget_old(connection, table.table_id)
    return outcome.dump


def _next_table(connection: Connection, row: AnyRow, at_us: int) -> AnyRow | None:
    """The one that is due whose last verification was ordered the longest ago: one that fails keeps none waiting."""
    period_us = row.every_seconds * 1_000_000
    due_us, retry_us = at_us - int(DUE * period_us), at_us - int(RETRY * period_us)
    why, ordered_at_us = verification_states.WHY, Sync.verification_ordered_at_us
    running = exists(1).where(Dump.table_id == Sync.table_id, Dump.state == DumpEnd.RUNNING)
    statement = (
        verification_states.tables(
            connection, row.source_id, Sync.table_id, SourceTable.database, SourceTable.name, ordered_at_us
        )
        .where(
            verification_states.is_out_of(verification_states.KNOWN_AT_US, due_us, at_us + period_us),
            verification_states.is_out_of(ordered_at_us, retry_us, at_us + period_us),
            or_(why == "", (why == "refused") & (ordered_at_us < due_us)),
            ~running,
        )
        .order_by(ordered_at_us, Sync.table_id)
        .limit(LOOKED)
    )
    pattern = Pattern(row.database, row.name)
    if pattern == EVERY_TABLE:
        return connection.execute(statement.limit(1)).first()
    after = (-1, -1)
    while page := connection.execute(statement.where(tuple_(ordered_at_us, Sync.table_id) > after)).all():
        for each in page:
            if pattern.matches((each.database, each.name)):
                return each
        after = (page[-1].verification_ordered_at_us, page[-1].table_id)
    return None


def _spacing_us(connection: Connection, row: AnyRow) -> int:
    """So that all tables have their turn within `PASS` of a period, as far as the window is open."""
    pattern = Pattern(row.database, row.name)
    names = verification_states.tables(connection, row.source_id, SourceTable.database, SourceTable.name).where(
        verification_states.WHY == ""
    )
    if pattern == EVERY_TABLE:
        tables = connection.execute(select(func.count()).select_from(names.subquery())).scalar_one()
    else:
        tables = sum(pattern.matches((each.database, each.name)) for each in connection.execute(names))
    return spacing_us(row.every_seconds, tables, row.window)


def spacing_us(every_seconds: int, tables: int, window: str = "") -> int:
    """
    >>> spacing_us(7 * 86_400, 10_000), spacing_us(86_400, 1_000, "22:00-05:00 UTC"), spacing_us(86_400, 1)
    (45360000, 18900000, 10800000000)
    """
    period_us = every_seconds * 1_000_000
    opened = Window.parse(window).share if window else Fraction(1)
    spread = int(PASS * period_us * opened / max(1, tables))
    return max(LEAST_SPACING_US, min(spread, int(RETRY * period_us)))


def _opens_at_us(row: AnyRow, at_us: int) -> int:
    """0: the window is open."""
    now = datetime.fromtimestamp(at_us / 1e6, UTC)
    window = Window.parse(row.window) if row.window else None
    return 0 if window is None or window.is_open(now) else int(window.opens_at(now).timestamp() * 1e6)


def _runs(connection: Connection, source_id: int) -> bool:
    of_source = (Dump.source_id == source_id, Dump.state == DumpEnd.RUNNING, Dump.cause == VERIFICATION)
    return connection.execute(select(Dump.id).where(*of_source).limit(1)).first() is not None


def _wait_until(connection: Connection, row: AnyRow, next_at_us: int) -> None:
    this = VerificationSchedule.source_id == row.source_id
    connection.execute(update(VerificationSchedule).where(this).values(next_at_us=next_at_us))


def _farthest_us(every_seconds: int) -> int:
    """Ahead of now, that a next time can be: a later one is of a clock that went back."""
    return every_seconds * 1_000_000 + DAY_US


def _forget_old(connection: Connection, table_id: int) -> None:
    """Those behind a repair are counted, so that no more than `MOST_PROOFS` follow it: so many stay. `comparisons`
    forgets its own."""
    repair = select(Dump.id).where(Dump.table_id == table_id, Dump.cause == REPAIR).limit(1)
    kept = KEPT_VERIFICATIONS if connection.execute(repair).first() is None else MOST_PROOFS
    ended = (Dump.table_id == table_id, Dump.cause == VERIFICATION, Dump.state != DumpEnd.RUNNING)
    old = select(Dump.id).where(*ended, Dump.compares.is_(False)).order_by(Dump.id.desc()).offset(kept)
    delete_dumps(connection, list(connection.execute(old).scalars()))
