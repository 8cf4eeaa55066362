"""Verifications behind repairs: one when a repair is done, and others as long as none could tell.

Comes in: repairs and verifications that an entry of the log ends; verdicts of a lake that are new. Goes out, in the
same transaction: a verification of the ranges that were read again, where all of the rest was equal, else of the whole
table. Others' writes may leave its verdict unknown: then another one is ordered, each after a longer while, until there
are `MOST_PROOFS` behind the repair, whoever has ordered them. Each verdict from then on says so, and the table differs
until one that the schedule or somebody orders can tell.

A verdict may be told before the entry is applied with which its verification ends, or after it; whichever comes second
orders the next one. A kill leaves a verdict with what follows from it, or neither.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from menura.lake_report import MAX_REASON_CHARS, LakeVerdict, clipped
from menura.landed_digest import LandedFocus, decode_focus
from menura.naming import command_table
from sqlalchemy import Connection, func, select, update

from controlplane_api import rereads, verification_schedules
from controlplane_api.database import LOOKUP_ROWS
from controlplane_api.drill_downs import is_newest, verification_of
from controlplane_api.dump_lives import MOST_PROOFS, REPAIR, VERIFICATION, DumpOptions, create_focused
from controlplane_api.models import AnyRow, Dump, Source, Sync, Tenant, Verdict
from controlplane_api.states import Desired, DumpEnd, Proof
from controlplane_api.syncs import lock_source
from controlplane_api.verdicts import judged

logger = logging.getLogger(__name__)


def order_proofs(connection: Connection, repaired: Sequence[int], at_us: int) -> None:
    """Of tables whose repairs have ended: by the ids of these. Their sources' rows are locked."""
    busy = select(Dump.table_id).where(Dump.state == DumpEnd.RUNNING)  # of a re-read, which this entry has ordered
    rows = connection.execute(
        select(Dump).join(Sync, Sync.table_id == Dump.table_id)
        .where(
            Dump.id.in_(repaired), Dump.focus.is_not(None), Dump.table_id.not_in(busy),
            Sync.desired == Desired.SYNCING, Sync.failed.is_(False),
        )
        .order_by(Dump.id)
    ).all()  # fmt: skip
    for row in rows:
        focus = decode_focus(row.focus)
        _order(connection, row, replace(focus, repaired_by=row.uuid) if focus.rest_equal_at_us else None, at_us)


def follow_ended(connection: Connection, verified: Sequence[int], at_us: int) -> None:
    """Verifications that have ended, by their ids; their verdicts may be there. Their sources' rows are locked."""
    rows = connection.execute(
        select(Verdict)
        .join(Dump, Dump.uuid == Verdict.verification)
        .join(Source, (Source.id == Dump.source_id) & (Source.name == Verdict.source))
        .join(Tenant, (Tenant.id == Source.tenant_id) & (Tenant.name == Verdict.tenant))
        .where(Dump.id.in_(verified), Verdict.verdict == Proof.UNKNOWN)
        .order_by(Verdict.id)
    ).all()
    for row in rows:
        _follow(connection, row, at_us)


def follow_told(connection: Connection, lake_id: int, told: Sequence[LakeVerdict], at_us: int) -> None:
    """Verdicts of a lake that are new. Their sources' rows get locked."""
    unsure = [each.verification for each in told if each.verdict == Proof.UNKNOWN]
    for begin in range(0, len(unsure), LOOKUP_ROWS):
        some = Verdict.verification.in_(unsure[begin : begin + LOOKUP_ROWS])
        for row in connection.execute(select(Verdict).where(Verdict.lake_id == lake_id, some)).all():
            _follow(connection, row, at_us)


def _follow(connection: Connection, told: AnyRow, at_us: int) -> None:
    """A verdict that is unknown. One with leaves that differ is followed by a drill-down."""
    name = (told.tenant, told.source, told.database, told.name)
    verification = verification_of(connection, name, told.verification)
    if verification is None or told.leaves_differ:
        return
    lock_source(connection, verification.source_id)
    repair = _repair_before(connection, verification)
    if repair is None or not is_newest(connection, verification) or not _is_unhealed(connection, told, repair):
        return
    behind = (Dump.table_id == repair.table_id, Dump.cause == VERIFICATION, Dump.id > repair.id)
    count = connection.execute(select(func.count()).where(*behind)).scalar_one()
    if count >= MOST_PROOFS:
        _give_up(connection, told, repair)
        return
    focus = _focus_again(repair, verification, told)
    _order(connection, repair, focus, at_us, rereads.delay_seconds(count, MOST_PROOFS))


def _repair_before(connection: Connection, verification: AnyRow) -> AnyRow | None:
    """The repair behind which it came, if nothing else has read the table's rows since."""
    done = (Dump.table_id == verification.table_id, Dump.state == DumpEnd.DONE, Dump.cause != VERIFICATION)
    newest = connection.execute(select(Dump).where(*done).order_by(Dump.id.desc()).limit(1)).first()
    if newest is None or newest.cause != REPAIR or newest.focus is None or newest.id > verification.id:
        return None
    return newest


def _is_unhealed(connection: Connection, told: AnyRow, repair: AnyRow) -> bool:
    """Whether the lake's last word on the table is the difference that was repaired."""
    names = (Verdict.lake_id, Verdict.tenant, Verdict.source, Verdict.database, Verdict.name)
    of_table = [column == getattr(told, column.key) for column in names]
    rows = connection.execute(select(Verdict).where(*of_table).order_by(Verdict.id.desc())).all()
    if judged(rows)[0] is not Proof.DIFFERS:
        return False
    found = next(row.verification for row in rows if row.verdict == Proof.DIFFERS)
    later = select(Dump.id).where(Dump.table_id == repair.table_id, Dump.uuid == found, Dump.id > repair.id)
    return connection.execute(later).first() is None


def _focus_again(repair: AnyRow, verification: AnyRow, told: AnyRow) -> LandedFocus | None:
    """None: the whole table. Of a lake whose rest nothing is known of, ranges that are equal tell nothing."""
    focus = decode_focus(repair.focus)
    if verification.focus is None or not focus.rest_equal_at_us:
        return None
    if decode_focus(verification.focus).repaired_by and not told.leaves_unknown:
        return None
    return replace(focus, repaired_by=repair.uuid)


def _order(
    connection: Connection, repair: AnyRow, focus: LandedFocus | None, at_us: int, delay_seconds: int = 0
) -> None:
    """A repair's limit holds back rows that travel and are merged; its verification reads, perhaps the whole table: as
    the source's scheduled ones, and as urgently as the repair."""
    schedule = verification_schedules.of_source(connection, repair.source_id)
    rows_per_second = schedule.rows_per_second if schedule is not None else 0
    options = DumpOptions(repair.priority, rows_per_second=rows_per_second, forced=True)
    where = (repair.source_id, repair.table_id)
    create_focused(connection, *where, options, VERIFICATION, focus, at_us, delay_seconds)


def _give_up(connection: Connection, told: AnyRow, repair: AnyRow) -> None:
    said = (
        f"{told.reason}; the {MOST_PROOFS} verifications that may follow repair {repair.uuid} could not tell, and no"
        " other one is ordered: when less is written to the table, run: menura verify run"
        f" {told.source} {command_table(told.database, told.name)}"
    )
    reason = clipped(said, MAX_REASON_CHARS)
    connection.execute(update(Verdict).where(Verdict.id == told.id).values(reason=reason))
    logger.warning("repair not proven: dump=%s", repair.uuid)
