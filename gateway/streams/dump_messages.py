"""Between the wire's messages about dumps and the values of landing and the registry; bounds what an agent may say.

Pure: messages in, values out. Bounds of ranges are values of rows: they stand in no error.
"""

import math
from collections.abc import Callable

from menura.bounds import (
    MAX_CHUNK_BYTES,
    MAX_INSTANT_US,
    MAX_KEY_COLUMNS,
    MAX_NAME_CHARS,
    MAX_NUMBER,
    MAX_TEXT_CHARS,
    clean_int64,
    clean_text,
)
from menura.landed_digest import LandedFocus
from menura.landing import LandedChunk
from menura.v1.config_pb2 import TableName
from menura.v1.snapshot_pb2 import (
    ChunkEnd,
    DesiredDumps,
    DumpLimits,
    DumpOrder,
    DumpPlan,
    DumpRange,
    DumpStatus,
)

from gateway.errors import NOTHING_LOST, PayloadInvalid
from gateway.landing.chunks import WHOLE
from gateway.registry import DumpDesired, DumpPlanned, DumpsDesired, DumpSeen, KeyRange
from gateway.wire.digest import focus_message, landed_digest
from gateway.wire.translation import table_name

#: a key has at most 3,072 bytes, and a text of it several characters a byte
MAX_BOUND_CHARS = 32 << 10
MAX_RANGES = 4096


def desired_dumps(desired: DumpsDesired, next_chunk: Callable[[DumpDesired], int]) -> DesiredDumps:
    return DesiredDumps(
        generation=desired.generation,
        dumps=[
            DumpOrder(
                dump=order.dump,
                table=TableName(database=order.database, table=order.table),
                priority=order.priority,
                paused=order.paused,
                limits=DumpLimits(
                    workers=order.workers,
                    rows_per_second=order.rows_per_second,
                    bytes_per_second=order.bytes_per_second,
                ),
                started_gsn=order.started_gsn,
                plan=_wire_plan(order.dump, order.plan) if order.plan is not None else None,
                remaining=_wire_ranges(order.remaining),
                next_chunk=next_chunk(order),
                begins_in_seconds=order.begins_in_seconds,
                verifies=order.verifies,
                focus=focus_message(order.focus) if order.focus is not None else None,
                tells_anew=order.tells_anew,
            )
            for order in desired.dumps
        ],
    )


def dump_planned(plan: DumpPlan, order: DumpDesired) -> DumpPlanned:
    """Its ranges follow each other from the key's beginning without a hole: nothing of the table is left out.

    Those of a repair are its order's.
    """
    if len(plan.key) > MAX_KEY_COLUMNS or len(plan.ranges) > MAX_RANGES or bool(plan.key) != bool(plan.ranges):
        raise _invalid("a dump's plan", f"a key of {len(plan.key)} columns and {len(plan.ranges)} ranges")
    if any(not 0 < len(column) <= MAX_NAME_CHARS for column in plan.key):
        raise _invalid("a dump's plan", "a column of the key with an impossible name")
    if len({part.number for part in plan.ranges}) != len(plan.ranges):
        raise _invalid("a dump's plan", "two ranges of one number")
    if order.focus is not None and order.repairs:
        _check_repair(plan, order.focus)
    else:
        _check_whole(plan)
    return DumpPlanned(
        key=tuple(clean_text(column, MAX_NAME_CHARS) for column in plan.key),
        ranges=tuple(KeyRange(part.number, part.lower, part.upper) for part in plan.ranges),
        estimated_rows=clean_int64(plan.estimated_rows) if plan.HasField("estimated_rows") else None,
        estimated_bytes=clean_int64(plan.estimated_bytes) if plan.HasField("estimated_bytes") else None,
        runway_seconds=clean_int64(plan.runway_seconds) if plan.HasField("runway_seconds") else None,
        needed_seconds=clean_int64(plan.needed_seconds) if plan.HasField("needed_seconds") else None,
        warning=clean_text(plan.warning),
        least_key=_finite(plan.least_key) if plan.HasField("least_key") else None,
        greatest_key=_finite(plan.greatest_key) if plan.HasField("greatest_key") else None,
    )


def _check_repair(plan: DumpPlan, focus: LandedFocus) -> None:
    if [(bool(_bound(part.lower)), bool(_bound(part.upper))) for part in plan.ranges] != [
        (bool(each.above), bool(each.up_to)) for each in focus.ranges
    ]:
        raise _invalid("a repair's plan", f"{len(plan.ranges)} ranges, which are not the {len(focus.ranges)} ordered")


def _check_whole(plan: DumpPlan) -> None:
    before = ""
    for place, part in enumerate(plan.ranges):
        if part.lower != before or (not part.upper and place < len(plan.ranges) - 1):
            raise _invalid("a dump's plan", f"a hole before range {part.number}, or a range after the last")
        before = _bound(part.upper)
    if before:
        raise _invalid("a dump's plan", "no range for the keys behind the last one")


def dump_seen(status: DumpStatus) -> DumpSeen:
    known = DumpStatus.State.DESCRIPTOR.values_by_number
    holds = DumpStatus.Held.DESCRIPTOR.values_by_number
    return DumpSeen(
        dump=status.dump,
        state=known[status.state].name if status.state in known else "STATE_UNSPECIFIED",
        reason=clean_text(status.reason),
        rows_per_second=clean_int64(status.rows_per_second),
        bytes_per_second=clean_int64(status.bytes_per_second),
        uncommitted_rows=clean_int64(status.uncommitted_rows),
        held=holds[status.held].name if status.held and status.held in holds else "",
    )


def landed_chunk(end: ChunkEnd, order: DumpDesired) -> LandedChunk:
    """As it lands, without the number that a cut gives to its rows."""
    if table_name(end.table) != (order.database, order.table):
        raise _invalid("the end of a dump's chunk", "a table other than its dump's")
    if not 0 <= end.chunk <= MAX_NUMBER or not 0 <= end.source_bytes <= MAX_CHUNK_BYTES:
        raise _invalid("the end of a dump's chunk", f"chunk {end.chunk} of {end.source_bytes} bytes")
    if not all(0 <= number <= MAX_INSTANT_US for number in (end.row_count, end.read_at_us, end.read_us)):
        raise _invalid("the end of a dump's chunk", "a number that is none of this world")
    lower, upper = _bound(end.lower), _bound(end.upper)
    if order.plan is None:
        if (end.range, lower, upper, end.last_of_range) != (WHOLE, "", "", True):
            raise _invalid("the end of a dump's chunk", "a part of a table that has no plan of parts")
    elif not end.last_of_range and upper in ("", lower):
        raise _invalid("the end of a dump's chunk", "a chunk that ends where it begins")
    if end.HasField("digest") != order.verifies:
        raise _invalid("the end of a dump's chunk", "a digest of a dump's rows, or rows of a verification")
    digest = landed_digest(end.digest, end.row_count, order.focus) if order.verifies else None
    if digest is not None and digest.kinds and (bool(lower), bool(upper)) != (bool(digest.above), bool(digest.up_to)):
        raise _invalid("the end of a dump's chunk", "a digest that begins or ends elsewhere")
    if len(end.position) > MAX_TEXT_CHARS:
        raise _invalid("the end of a dump's chunk", f"a position of more than {MAX_TEXT_CHARS} characters")
    return LandedChunk(
        database=order.database,
        table=order.table,
        dump=order.dump,
        chunk=end.chunk,
        gsn=0,
        range=end.range,
        lower=lower,
        upper=upper,
        last_of_range=end.last_of_range,
        rows=end.row_count,
        source_bytes=end.source_bytes,
        read_at_us=end.read_at_us,
        read_us=end.read_us,
        position=clean_text(end.position),
        digest=digest,
        repairs=order.repairs,
    )


def _wire_plan(dump: str, plan: DumpPlanned) -> DumpPlan:
    return DumpPlan(
        dump=dump,
        key=plan.key,
        ranges=_wire_ranges(plan.ranges),
        estimated_rows=plan.estimated_rows,
        estimated_bytes=plan.estimated_bytes,
        runway_seconds=plan.runway_seconds,
        needed_seconds=plan.needed_seconds,
        warning=plan.warning,
    )


def _wire_ranges(ranges: tuple[KeyRange, ...]) -> list[DumpRange]:
    return [DumpRange(number=part.number, lower=part.lower, upper=part.upper) for part in ranges]


def _bound(text: str) -> str:
    if len(text) > MAX_BOUND_CHARS or "\0" in text:
        raise _invalid("a bound of a key's range", f"one of {len(text)} characters, or with a NUL")
    return text


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _invalid(reading: str, found: str) -> PayloadInvalid:
    return PayloadInvalid(f"reading {reading}", found, data=NOTHING_LOST)
