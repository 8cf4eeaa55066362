"""Rows that a dump or a repair did not find any more, of which no row of the changelog says that they went.

Comes in: a changelog as a step has it, and where the step begins. Goes out: deletes, with the number of the dump's or
the repair's end. A row that nothing has touched since the step began is the current state's of that moment; of the
others the changelog from then on says what they were. So nothing of the changelog is read that is older than the dump's
begin and the step. In memory are the keys which the changelog has since, those of the rows that one end took away, the
changes between the step's begin and the dump's of keys that the dump has not seen, and 64 MiB of the state's rows.

Where that state is removed, or has had other types, the whole changelog is read. One that was shortened lacks rows that
had stood unchanged for long; where an end may have taken one of these away that is an error.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from menura.change_batch import ABSENT, CHANGE_TYPE, COMMIT_TIMESTAMP_US, GSN, POSITION, TRANSACTION_ID, UNREPRESENTABLE

from spark_sink.errors import ChangelogShortened, HistoryImpossible
from spark_sink.export.position import ANEW, TablePosition
from spark_sink.export.ranges import CONVERTED_ROWS, HELD_BYTES
from spark_sink.export.rows import Row, Shape
from spark_sink.history import Removal, emptied, ends_above, keyless, versions_ended
from spark_sink.lake.changelog_retention import read_kept
from spark_sink.lake.delta_table import open_table, quoted, read_layout, read_progress, scan, schema_of, text
from spark_sink.lake.logged_changes import gathered
from spark_sink.lake.record_rows import number_of
from spark_sink.lake.records import Records
from spark_sink.lake.retention import is_told, is_whole
from spark_sink.lake.table_folders import table_folder
from spark_sink.lake.tail import Rows
from spark_sink.landed.lake_schema import fit, wider
from spark_sink.reading import rows_of_versions
from spark_sink.work import CHANGELOG, CURRENT, TableId

_DOING = "exporting what a dump or a repair took away"
_DATA = "Nothing of this table's changes since the last step was exported"

#: numbers of ends, and their positions
Ends = dict[int, str]
#: numbers of ends, in order, and what reads the rows that each took away
Removed = Sequence[tuple[int, Callable[[], Iterator[Row]]]]


@dataclass(frozen=True, slots=True)
class _Untouched:
    """The current state as it was, without a tail, and which of its rows ends have taken away that nothing touched."""

    rows: Rows
    changelog: DeltaTable
    key: Sequence[str]
    ends: Sequence[Removal]
    #: up to which it has changes, and from which the changelog says what has touched a row
    gsn: int
    from_gsn: int
    #: numbers of removals of all rows
    emptied: Sequence[int]

    def taken_by(self, end: Removal) -> Iterator[pa.Table]:
        if any(self.gsn < number <= end.gsn for number in self.emptied):
            return
        condition = _unseen_by(end)
        for former in self.ends:
            if former.gsn < end.gsn:
                condition += f" AND NOT ({_unseen_by(former)})"
        schema = self.rows.schema
        key = [schema.field(name) for name in self.key]
        chosen, gsn = ", ".join(map(quoted, self.key)), quoted(GSN)
        query = f"SELECT DISTINCT {chosen} FROM t WHERE {gsn} >= {self.from_gsn} AND {gsn} <= {end.gsn}"  # noqa: S608
        touched = scan(self.changelog, query).read_all().cast(pa.schema(key))
        logged = schema_of(self.changelog)
        keys = gathered(self.rows.tables(self.key, condition))
        untouched = (each.join(touched, list(self.key), join_type="left anti") for each in keys)
        taken = pa.concat_tables([pa.schema(key).empty_table(), *untouched])
        if not taken.num_rows:
            return
        names = [name for name in schema.names if name in logged.names]
        for found in gathered(self.rows.tables(names, condition), HELD_BYTES):
            yield fit(found.join(taken, list(self.key), join_type="left semi"), logged)


def _unseen_by(end: Removal) -> str:
    return f"{quoted(GSN)} < {end.before_gsn} AND ({end.condition})"


def removed_rows(
    lake: str, table: TableId, changelog: DeltaTable, shape: Shape, before: TablePosition, gsn: int
) -> Removed:
    """Reads those of ends above a position, up to a number. Raises `SinkError`, which the reading does not; OSError and
    DeltaError of the store.
    """
    positions = _positions(lake, table, before.gsn, gsn) if shape.key else {}
    if not positions:
        return ()
    try:
        removals = ends_above(lake, table, changelog, before.gsn)
        ends = [each for each in removals.of_unseen if each.gsn in positions]
        held = _held_at(lake, table, before)
        begins_gsn = read_kept(changelog).begins_gsn
        untouched = _untouched(table, held, changelog, ends) if held is not None else None
        if untouched is None or begins_gsn > untouched.from_gsn:
            untouched = None
            if begins_gsn:
                _check(table, held, changelog, begins_gsn, ends)
        ended_by = versions_ended(table, changelog, removals, untouched.from_gsn if untouched is not None else 0)
    except HistoryImpossible as why:
        raise HistoryImpossible(
            _DOING, why.found, data=_DATA, remedy=f"{ANEW}, until the next one ends", **table.where(0)
        ) from why
    return [(each.gsn, partial(_rows, shape, each, positions[each.gsn], untouched, ended_by)) for each in ends]


def _untouched(table: TableId, held: Rows, changelog: DeltaTable, ends: Sequence[Removal]) -> _Untouched | None:
    """None: the state had other columns as its key, or values that the changelog's columns don't have."""
    logged, layout = schema_of(changelog), read_layout(changelog)
    names = {name.lower(): name for name in logged.names}
    key = [names[name.lower()] for name in layout.key]
    own = {field.name: field.type for field in held.schema if not field.name.startswith("_menura_")}
    is_same = list(read_layout(held.current).key) == list(layout.key) and all(name in own for name in key)
    if not is_same or any(
        name not in logged.names or wider(logged.field(name).type, type_) != logged.field(name).type
        for name, type_ in own.items()
    ):
        return None
    missing = " OR ".join(f"{quoted(name)} IS NULL" for name in key)
    if scan(held.current, f"SELECT {quoted(GSN)} FROM t WHERE {missing} LIMIT 1").read_all().num_rows:  # noqa: S608
        raise keyless(table)
    # Without its tail, whose rows are in the changelog.
    gsn = read_progress(held.current, table.application).gsn
    from_gsn = min([gsn + 1, *(each.before_gsn for each in ends)])
    removals = [each.gsn for each in emptied(changelog, from_gsn)]
    merged = Rows(held.current, held.progress, None, ())
    return _Untouched(merged, changelog, key, ends, gsn, from_gsn, removals)


def _positions(lake: str, table: TableId, above_gsn: int, gsn: int) -> Ends:
    events = open_table(Records(lake).events_folder)
    if events is None:
        return {}
    query = (
        f"SELECT {quoted(GSN)} AS gsn, {quoted(POSITION)} AS position FROM t WHERE {_of_table(table)}"  # noqa: S608
        f" AND kind IN ('DUMPED', 'REPAIRED') AND NOT removes_rows"
        f" AND {quoted(GSN)} > {above_gsn} AND {quoted(GSN)} <= {gsn} ORDER BY gsn"
    )
    return {event["gsn"]: event["position"] for event in scan(events, query).read_all().to_pylist()}


def _of_table(table: TableId) -> str:
    names = ("tenant", "source", "database", "table")
    return " AND ".join(f"{quoted(name)} = {text(getattr(table, name))}" for name in names)


def _rows(
    shape: Shape,
    end: Removal,
    position: str,
    untouched: _Untouched | None,
    ended_by: Callable[[Removal], pa.RecordBatchReader],
) -> Iterator[Row]:
    for batch in ended_by(end):
        yield from _deletes(shape, end, position, pa.table(batch))
    if untouched is not None:
        for found in untouched.taken_by(end):
            yield from _deletes(shape, end, position, found)


def _deletes(shape: Shape, end: Removal, position: str, found: pa.Table) -> Iterator[Row]:
    for begin in range(0, found.num_rows, CONVERTED_ROWS):
        rows = found.slice(begin, CONVERTED_ROWS)
        constants = {
            CHANGE_TYPE: pa.repeat(pa.scalar("delete"), rows.num_rows),
            GSN: pa.repeat(pa.scalar(end.gsn), rows.num_rows),
            TRANSACTION_ID: pa.repeat(pa.scalar(0), rows.num_rows),
            COMMIT_TIMESTAMP_US: pa.repeat(pa.scalar(end.at_us), rows.num_rows),
            POSITION: pa.repeat(pa.scalar(position), rows.num_rows),
        }
        kept = [column.lake for column in shape.columns] + [UNREPRESENTABLE, ABSENT]
        yield from shape.rows(pa.table({**{name: rows[name] for name in kept}, **constants}))


def _check(table: TableId, held: Rows | None, changelog: DeltaTable, begins_gsn: int, ends: Sequence[Removal]) -> None:
    """Raises `ChangelogShortened` where an end may have taken away a row that the changelog does not have."""
    names = {name.lower(): name for name in schema_of(changelog).names}
    key = [names[name.lower()] for name in read_layout(changelog).key]
    for end in ends:
        if held is not None and not _lacking(held, changelog, key, begins_gsn, end):
            continue
        raise ChangelogShortened(
            _DOING,
            f"a dump or a repair has ended with {end.gsn}, and the changelog, which has changes from {begins_gsn} on,"
            " does not have all rows that it may have taken away",
            data=_DATA,
            remedy=ANEW,
            **table.where(0),
        )


def _held_at(lake: str, table: TableId, before: TablePosition) -> Rows | None:
    """The current state at a position; None: no boundary tells its version any more, or that is removed."""
    cuts = open_table(Records(lake).cuts_folder)
    if cuts is None:
        return None
    query = (
        f"SELECT current_version FROM t WHERE {_of_table(table)} AND changelog_version = {before.version}"  # noqa: S608
        f" AND current_version IS NOT NULL ORDER BY cut DESC, {number_of(cuts)} DESC LIMIT 1"
    )
    found = scan(cuts, query).read_all()["current_version"].to_pylist()
    changelog, current = (f"{table_folder(lake, table)}/{kind}" for kind in (CHANGELOG, CURRENT))
    if not found or not is_told(changelog, before.version) or not is_told(current, found[0]):
        return None
    rows = rows_of_versions(lake, table, before.version, found[0])
    return rows if is_whole(current, rows.current) else None


def _lacking(held: Rows, changelog: DeltaTable, key: Sequence[str], begins_gsn: int, end: Removal) -> int:
    """How many rows there were that had last been seen before the changelog begins, and before the end asks for, and
    whose key has nothing in the changelog up to the end.
    """
    gsn, below_gsn = quoted(GSN), min(begins_gsn, end.before_gsn)
    schema = pa.schema([held.schema.field(name) for name in (*key, GSN)])
    found = held.tables(schema.names, f"{gsn} < {below_gsn} AND ({end.condition})")
    rows = pa.concat_tables([schema.empty_table(), *found])
    rows = rows.filter(pc.less(rows[GSN], below_gsn))
    if not rows.num_rows:
        return 0
    chosen = ", ".join(map(quoted, key))
    query = f"SELECT DISTINCT {chosen} FROM t WHERE {gsn} >= {begins_gsn} AND {gsn} <= {end.gsn}"  # noqa: S608
    touched = scan(changelog, query).read_all().cast(pa.schema([schema.field(name) for name in key]))
    return int(rows.join(touched, list(key), join_type="left anti").num_rows)
