"""What an export has to give out next: changes of tables from a position to the newest cut of their sources.

Comes in: a lake, tables, a `Position`. Goes out: `Step`s. A step's messages of one source stand in its order (`_gsn`),
so that a transaction's are together and tables are as they were at one cut; sources follow each other, since they have
no common moment. A step ends at a cut at which the lake's tables are complete, and says the position behind it; whoever
gives it out keeps that once its messages are durable. Nothing of the lake is changed.

Messages replayed by key, in order, give the current state: rows that a dump or a repair did not find any more are
deletes, and rows that a dump brought late are left out where a later change of their key is out. The tables of a step
share what it holds in memory (`ranges.Held`); a table is begun only where its numbers begin.

A table that is not readable at the cut (it has stopped) has nothing until it is; the others go on. Changes that the
changelog does not keep any more, a changelog that is another one, and a position whose version is removed are errors of
the table: it is left out (`Feed.failed`) and stays at its position, and the others go on.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from menura.change_batch import CHANGE_TYPE, COMMIT_TIMESTAMP_US, GSN
from menura.instants import now_us

from spark_sink.errors import (
    ChangelogShortened,
    ExportPositionInvalid,
    ExportSchemaRefused,
    ExportValueRefused,
    SinkError,
    TableNotAtCut,
    TableNotInLake,
)
from spark_sink.export.envelope import Envelope, Message
from spark_sink.export.fields import FieldOf, field_of
from spark_sink.export.late_rows import late_rows
from spark_sink.export.position import ANEW, BEGINNING, NOTHING, Position, TablePosition
from spark_sink.export.ranges import Held, merged, ordered
from spark_sink.export.removed_rows import Removed, removed_rows
from spark_sink.export.rows import Row, Shape
from spark_sink.lake.boundaries import Boundary, TableState, read_boundaries, states_at
from spark_sink.lake.changelog_retention import files_by_number, read_kept
from spark_sink.lake.delta_table import (
    open_table,
    quoted,
    read_chunk_cut,
    read_layout,
    read_progress,
    scan,
    schema_of,
    text,
)
from spark_sink.lake.records import Records
from spark_sink.lake.retention import is_told, is_whole
from spark_sink.lake.table_folders import table_folder
from spark_sink.reading import opened, own_columns, rows_of_versions
from spark_sink.work import CHANGELOG, TableId

_DOING = "exporting changes"
_DATA = "Nothing of this table's changes since the last step was exported"

Source = tuple[str, str]


@dataclass(frozen=True, slots=True)
class TableStep:
    """A table's part of a step."""

    envelope: Envelope
    rows: Callable[[], Iterator[Row]]
    after: TablePosition
    #: the current state's, at the step's cut; None: there is none yet
    current_version: int | None
    #: no row has a lower number
    first_gsn: int = 0

    def named(self) -> Iterator[tuple["TableStep", Message]]:
        """Its messages in order, each with itself."""
        for message in self.envelope.messages(self.rows()):
            yield self, message


@dataclass(frozen=True, slots=True)
class Step:
    """Messages up to a cut of each source, and the position behind them."""

    sources: Sequence[Sequence[TableStep]]
    position: Position

    def messages(self) -> Iterator[tuple[TableStep, Message]]:
        """In order; may be read again."""
        for tables in self.sources:
            yield from merged([(each.first_gsn, each.named) for each in tables], lambda found: found[1].gsn)


@dataclass(frozen=True, slots=True)
class _Newest:
    """What is wanted of the step from a position: so many rows of those up to a number, and all above it."""

    position: TablePosition
    rows: int
    up_to_gsn: int

    def of(self, rows: Callable[[], Iterator[Row]]) -> Iterator[Row]:
        held = deque[Row](maxlen=self.rows)
        for row in rows():
            if row.gsn <= self.up_to_gsn:
                held.append(row)
            else:
                yield from held
                held.clear()
                yield row
        yield from held


#: a table's part of a step, if it has one
_Part = Callable[[TableId, TableState, Boundary], TableStep | None]


class Feed:
    def __init__(
        self,
        lake: str,
        tables: Collection[TableId],
        groups: Collection[tuple[str, ...]] = (),
        position: Position = BEGINNING,
        fields: FieldOf = field_of,
        *,
        removals: bool = True,
        chosen: Callable[[TableId], bool] = lambda _table: True,
    ) -> None:
        """`groups`: (tenant, source) or (tenant, source, database), of which all tables are wanted, also later ones.

        `removals`: whether what dumps' and repairs' ends take away is told. `chosen`: which of the groups' are wanted.
        """
        self.lake = lake
        self._tables = frozenset(tables)
        self._groups = tuple(groups)
        self._sources = sorted(
            {(each.tenant, each.source) for each in tables} | {(each[0], each[1]) for each in groups}
        )
        self._fields = fields
        self._removals = removals
        self._chosen = chosen
        self.position = position
        #: tables that are left out, and why; each is tried again once it has another version
        self.failed: dict[TableId, SinkError] = {}
        self._tried: dict[TableId, tuple[TablePosition, int | None]] = {}
        self._newest: dict[TableId, _Newest] = {}
        #: tables whose position is known to be of the lake's changelog
        self._recognised: set[TableId] = set()
        #: of each table of the step that is made
        self._held = Held()

    def wants(self, table: TableId) -> bool:
        of_group = any(_parts(table)[: len(group)] == group for group in self._groups)
        return table in self._tables or (of_group and self._chosen(table))

    def next(self) -> Step | None:
        """None: there is nothing new, but of tables in `failed`.

        Raises `TableNotInLake` for a source without a cut; OSError and DeltaError of the store.
        """
        return self._step(self._of_changes)

    def state(self) -> Step | None:
        """Each table's rows as they are, as those of a dump. Raises `SinkError` also where one table can't be read.

        One that can't be given out in the wanted form is left out, as by `next`.
        """
        step = self._step(self._of_state, whole=True)
        unread = [why for why in self.failed.values() if not isinstance(why, ExportSchemaRefused | ExportValueRefused)]
        if unread:
            raise unread[0]
        return step

    def at_cut(self, cut: int | None, *, whole: bool = True) -> Position:
        """The position at a cut of each source; None: at the newest.

        A table that is not in it begins from its beginning. `whole`: then one that can't be read there raises
        `TableNotAtCut`.
        """
        cuts, tables = {}, {}
        for source, boundary, states in self._boundaries(cut, whole=whole):
            cuts[source] = boundary.cut
            for table, state in states.items():
                tables[table] = _position_of(table, self._changelog(table, state.changelog_version))
        return Position(cuts, tables)

    def newest(self, rows: int) -> Position:
        """The position before the newest rows of each table's changelog: the step from there has no more of those that
        are there now, also where many have one number.
        """
        at = self.at_cut(None, whole=False)
        tables = {}
        for table, after in at.tables.items():
            above_gsn = _before_newest(opened(self.lake, table, CHANGELOG), after.gsn, rows)
            tables[table] = replace(after, gsn=above_gsn)
            if above_gsn < after.gsn:
                self._newest[table] = _Newest(tables[table], rows, after.gsn)
        return replace(at, tables=tables)

    def leave_out(self, failure: SinkError, step: Step) -> None:
        """The table of the step that the failure names, until it has another version: it can't be given out.

        Raises the failure where it names none.
        """
        for tables in step.sources:
            for each in tables:
                table = each.envelope.table
                if table.names() == {"source": failure.source, "database": failure.database, "table": failure.table}:
                    self.failed[table] = _without_frames(failure)
                    self._tried[table] = (self.position.of(table), each.after.version)
                    return
        raise failure

    def _boundaries(
        self, cut: int | None = None, *, whole: bool = False
    ) -> Iterator[tuple[Source, Boundary, dict[TableId, TableState]]]:
        """Of each source, with the tables that are readable there; `whole`: they must all be."""
        records = open_table(Records(self.lake).cuts_folder)
        for source in self._sources:
            found = read_boundaries(records, *source)
            boundary = found.at_cut(cut) if cut is not None else found.newest if found.found else None
            if records is None or boundary is None:
                raise TableNotInLake(
                    _DOING,
                    f"{self.lake} has no cut of {'/'.join(source)} that can be read",
                    remedy="Check the lake's address, the source's name, and the cut",
                )
            states = states_at(records, *source, boundary.cut)
            wanted = {table: state for table, state in states.items() if self.wants(table)}
            if whole:
                self._check_whole(boundary, wanted)
            yield source, boundary, {table: state for table, state in wanted.items() if _is_readable(state)}

    def _check_whole(self, boundary: Boundary, states: Mapping[TableId, TableState]) -> None:
        """But for those that have never had a row. Raises `TableNotAtCut`."""
        unreadable = [
            table for table, state in states.items() if not _is_readable(state) or state.current_version is None
        ]
        stopped = Records(self.lake).stopped_tables() if unreadable else {}
        for table in unreadable:
            if table in stopped or open_table(f"{table_folder(self.lake, table)}/{CHANGELOG}") is not None:
                raise TableNotAtCut(
                    _DOING,
                    f"{table} is not readable at cut {boundary.cut}: it had stopped then, or its folder was lost since",
                    data="Nothing was exported: the table would come with all of its history later",
                    remedy="Begin once the table goes on, or from another cut, or without this table",
                    **table.where(boundary.cut),
                )

    def _step(self, part: _Part, *, whole: bool = False) -> Step | None:
        cuts, tables = dict(self.position.cuts), dict(self.position.tables)
        sources = []
        for source, boundary, states in self._boundaries(whole=whole):
            found = []
            moved = [each for each, at in states.items() if self.position.of(each).version != at.changelog_version]
            self._held = Held().shared(len(moved))
            for table, state in states.items():
                step = self._tried_part(part, table, state, boundary)
                found += [step] if step is not None else []
            if found:
                cuts[source] = boundary.cut
                tables |= {each.envelope.table: each.after for each in found}
                sources.append(found)
        return Step(sources, Position(cuts, tables)) if sources else None

    def _tried_part(self, part: _Part, table: TableId, state: TableState, boundary: Boundary) -> TableStep | None:
        """None also where it fails, which no other table is to suffer from."""
        tried = (self.position.of(table), state.changelog_version)
        if table in self.failed and self._tried[table] == tried:
            return None
        self.failed.pop(table, None)
        try:
            return None if self._is_out(table, state) else part(table, state, boundary)
        except SinkError as failure:
            self.failed[table], self._tried[table] = _without_frames(failure), tried
            return None

    def _is_out(self, table: TableId, state: TableState) -> bool:
        """Another changelog may have the same version: its id is read once."""
        at = self.position.of(table)
        if at.version != state.changelog_version or self._newest_of(table) is not None:
            return False
        if table not in self._recognised and str(opened(self.lake, table, CHANGELOG).metadata().id) == at.id:
            self._recognised.add(table)
        return table in self._recognised

    def _changelog(self, table: TableId, version: int | None, *, whole: bool = False) -> DeltaTable:
        """As it was; `whole`: only with all of its files.

        Raises `ExportPositionInvalid` where it is removed; OSError and DeltaError of the store.
        """
        assert version is not None  # of a readable one
        found = opened(self.lake, table, CHANGELOG)
        folder = f"{table_folder(self.lake, table)}/{CHANGELOG}"
        try:
            found.load_as_version(version)
            if not whole or is_whole(folder, found):
                return found
        except (OSError, DeltaError):
            if is_told(folder, version):
                raise
        raise ExportPositionInvalid(
            _DOING,
            f"the changelog's version {version} is removed",
            data=_DATA,
            remedy=f"{ANEW}; a sink with more --keep-hours keeps versions for longer",
            **table.where(0),
        )

    def _of_changes(self, table: TableId, state: TableState, boundary: Boundary) -> TableStep:
        before = self.position.of(table)
        changelog = self._changelog(table, state.changelog_version)
        after = _position_of(table, changelog)
        self._check(table, changelog, before, after)
        self._recognised.add(table)
        shape = Shape.of(schema_of(changelog), read_layout(changelog), self._fields)
        former = None
        if before.chunk_cut != after.chunk_cut and before.gsn:
            former = self._changelog(table, before.version, whole=True)
        removed: Removed = ()
        if self._removals:
            removed = removed_rows(self.lake, table, changelog, shape, before, after.gsn)
        rows = partial(_changes, changelog, shape, before.gsn, former, removed, self._held)
        if (newest := self._newest_of(table)) is not None:
            rows = partial(newest.of, rows)
        first_gsn = min([_first(changelog, before.gsn), *(gsn for gsn, _ in removed)]) if former is None else 0
        return TableStep(Envelope(table, shape, now_us()), rows, after, state.current_version, first_gsn)

    def _newest_of(self, table: TableId) -> _Newest | None:
        found = self._newest.get(table)
        return found if found is not None and found.position == self.position.of(table) else None

    def _check(self, table: TableId, changelog: DeltaTable, before: TablePosition, after: TablePosition) -> None:
        if before != NOTHING and (before.id != after.id or before.gsn > after.gsn):
            raise ExportPositionInvalid(
                _DOING,
                "the position is of another table of this name: the lake's was made anew, or is an older copy",
                data=_DATA,
                remedy=ANEW,
                **table.where(0),
            )
        begins_gsn = read_kept(changelog).begins_gsn
        if before.gsn + 1 < begins_gsn:
            raise ChangelogShortened(
                _DOING,
                f"the export has changes up to {before.gsn}, and the changelog from {begins_gsn} on",
                data=_DATA,
                remedy=f"{ANEW}; the sink keeps more with --keep-changelog",
                **table.where(0),
            )

    def _of_state(self, table: TableId, state: TableState, boundary: Boundary) -> TableStep | None:
        if state.changelog_version is None or state.current_version is None:
            return None
        changelog = self._changelog(table, state.changelog_version)
        rows = rows_of_versions(self.lake, table, state.changelog_version, state.current_version)
        shape = Shape.of(rows.schema, read_layout(rows.current), self._fields)

        def read() -> Iterator[Row]:
            for found in rows.tables(own_columns(rows)):
                number = pa.repeat(pa.scalar(boundary.committed_us), found.num_rows)
                yield from shape.rows(found.append_column(COMMIT_TIMESTAMP_US, number).sort_by(GSN))

        return TableStep(Envelope(table, shape, now_us()), read, _position_of(table, changelog), state.current_version)


def _changes(
    changelog: DeltaTable,
    shape: Shape,
    above_gsn: int,
    former: DeltaTable | None,
    removed: Removed,
    held: Held,
) -> Iterator[Row]:
    if former is not None:
        yield from late_rows(former, changelog, above_gsn, shape, held)
    logged: Removed = [(above_gsn, partial(_in_order, changelog, shape, above_gsn, held))]
    yield from merged([*logged, *removed], lambda row: row.gsn)


def _parts(table: TableId) -> tuple[str, ...]:
    return table.tenant, table.source, table.database, table.table


def _without_frames(failure: SinkError) -> SinkError:
    """Frames would hold a step's rows, and the output with its lock, for as long as the error is kept."""
    each: BaseException | None = failure
    while each is not None:
        each.__traceback__ = None
        each = each.__cause__ or each.__context__
    return failure


def _is_readable(state: TableState) -> bool:
    return state.changelog_version is not None and not state.is_lost


def _position_of(table: TableId, changelog: DeltaTable) -> TablePosition:
    gsn = read_progress(changelog, table.application).gsn
    chunk_cut = read_chunk_cut(changelog, table.application)
    return TablePosition(gsn, chunk_cut, changelog.version(), str(changelog.metadata().id))


def _before_newest(changelog: DeltaTable, gsn: int, rows: int) -> int:
    """The number above which the newest rows up to another number are, of those that the changelog keeps."""
    if not rows:
        return gsn
    order = f"{quoted(GSN)} <= {gsn} ORDER BY {quoted(GSN)} DESC LIMIT {rows}"
    found = scan(changelog, f"SELECT {quoted(GSN)} AS gsn FROM t WHERE {order}").read_all()["gsn"].to_pylist()  # noqa: S608
    above_gsn = found[-1] - 1 if len(found) == rows else 0
    return min(gsn, max(above_gsn, read_kept(changelog).begins_gsn - 1))


def _in_order(changelog: DeltaTable, shape: Shape, above_gsn: int, held: Held) -> Iterator[Row]:
    """Rows with a higher number."""

    def read(low: int, high: int, kind: str | None) -> Iterator[pa.Table]:
        of_kind = f" AND {quoted(CHANGE_TYPE)} = {text(kind)}" if kind is not None else ""
        query = f"SELECT * FROM t WHERE {quoted(GSN)} > {low} AND {quoted(GSN)} <= {high}{of_kind}"  # noqa: S608
        yield from map(pa.table, scan(changelog, query))

    for low, high in _ranges(changelog, above_gsn, held.rows):
        for rows in ordered(read, low, high, held):
            yield from shape.rows(rows)


def _ranges(changelog: DeltaTable, above_gsn: int, most_rows: int) -> Iterator[tuple[int, int]]:
    """That few files have, where these do not overlap."""
    low, rows = above_gsn, 0
    for file in files_by_number(changelog):
        if file.high > above_gsn:
            if rows and rows + file.rows > most_rows and low < file.low - 1:
                yield low, file.low - 1
                low, rows = file.low - 1, 0
            rows += file.rows
    yield low, (1 << 63) - 1


def _first(changelog: DeltaTable, above_gsn: int) -> int:
    """What the lowest number above this one is at least."""
    lows = [max(file.low, above_gsn + 1) for file in files_by_number(changelog) if file.high > above_gsn]
    return min(lows, default=above_gsn)
