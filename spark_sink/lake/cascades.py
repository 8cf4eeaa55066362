"""What foreign keys did to a child's rows without a row in the log, as changes of the child.

Comes in: the child's current state, its landed parts of the batch, the changelogs of its parents, which have all of the
batch by now, and what `ParentsChanged` says of its keys. Goes out: the child's work with parts more: each derived
change has the number, transaction, time and position of the parent's change that it comes of, and goes into the
changelog and the current state like landed rows. So a table below takes them from this changelog as its own parents'
changes, and a replay derives the same again from where the current state is.

A chunk's rows are what they were somewhere after the chunk's number: to those that no change above it decides over, the
parents' changes above it are done too (`FollowedRange`).

Of a row that a running dump has not confirmed yet, a derived change has transaction 0, and in the current state the
row keeps the number that it had: a chunk decides over it, and the dump's end takes it away where none brings it.
"""

from collections.abc import Iterator, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from menura.change_batch import ABSENT, CHANGE_TYPE, GSN, ChangeType

from spark_sink.errors import CascadeUncertain
from spark_sink.lake.cascade_replay import (
    Facts,
    Fold,
    Image,
    Kind,
    OwnChange,
    ReferenceUnknown,
    Replay,
    ReplayKey,
    Trigger,
)
from spark_sink.lake.changelog_retention import read_kept
from spark_sink.lake.child_pool import Pool
from spark_sink.lake.child_rows import (
    FACTS,
    BaseRows,
    Columns,
    OwnRows,
    Wanted,
    actual,
    columns_of,
    concerned_changes,
    lacks,
    refers,
)
from spark_sink.lake.delta_table import Progress, dump_began_gsn, open_table, read_layout, scan, schema_of
from spark_sink.lake.derived_rows import Pending, Shapes, derived_parts
from spark_sink.lake.foreign_keys import (
    NEVER,
    FollowedKey,
    check_certain,
    comparable,
    followed_keys,
    uncertain,
)
from spark_sink.lake.key_bounds import key_bounds
from spark_sink.lake.logged_changes import TRUNCATE, LoggedChanges
from spark_sink.lake.parent_changes import IS_DELETE, ROWS_IN_PARTS, ParentChanges, new, old
from spark_sink.lake.partial_rows import AbsentColumns, row_keys
from spark_sink.lake.records import Records
from spark_sink.lake.schema_change import current_schema
from spark_sink.lake.table_folders import table_folder
from spark_sink.landed.event_columns import event_columns
from spark_sink.landed.lake_schema import grown
from spark_sink.landed.landed_file import LandedPart
from spark_sink.work import CHANGELOG, CutEvent, ParentsChanged, TableId, UncheckedRows

#: rows of a child that parents' changes may concern, in one batch: Python holds some hundred bytes of each
MOST_CONCERNED_ROWS = 2_000_000
#: kinds of events, as `menura.v1.TableEvent.Kind`
DUMP_STARTED, UNCHECKED = "DUMP_STARTED", "FOREIGN_KEYS_UNCHECKED"
_TAKEN = pa.array([ChangeType.delete.name, ChangeType.update_preimage.name])


class Child:
    """One child in one batch."""

    def __init__(
        self,
        lake: str,
        table: TableId,
        current: DeltaTable | None,
        changelog: DeltaTable | None,
        merged: Progress,
        logged: Progress,
        pending: Pending,
        marks: Sequence[ParentsChanged],
    ) -> None:
        """`pending` and `marks`: what the current state or the changelog does not have yet; `marks` are not empty."""
        self._lake = lake
        self._table = table
        self._current = current
        self._changelog = changelog
        self._merged = merged
        self._logged = logged
        self._pending = pending
        self._marks = marks
        self._cut = marks[-1].cut
        self._parts = [each for _, each in pending if not isinstance(each, CutEvent)]
        self._events = [each for _, each in pending if isinstance(each, CutEvent)]
        self._until = max(mark.last_gsn for mark in marks)
        self._above = max(merged.gsn, min(mark.first_gsn for mark in marks) - 1)
        chunks = [
            part.file.chunk.gsn
            for part in self._parts
            if part.file.is_range and part.file.cut > merged.chunk_cut and part.file.chunk
        ]
        self._low = min([self._above, *chunks])
        self._keys = [key for key in followed_keys(marks[-1].keys, self._low) if key.since < self._until]
        self._trigger_gsns = pa.array([], pa.int64())
        held = dump_began_gsn(current, table.application) if current is not None else 0
        self._begun = [0, held, *(event.first_gsn for event in self._events if event.event.kind == DUMP_STARTED)]
        self._itself = [key for key in self._keys if key.key.parent == (table.database, table.table)]

    def followed(self) -> Pending:
        """The pending work with what the keys' actions add to it. Raises `TableStopped`."""
        shapes = self._shapes()
        if not self._keys or not shapes.found:
            return self._pending
        columns = self._columns(shapes)
        triggers = [self._triggers(key, columns) for key in self._keys]
        self._trigger_gsns = pa.concat_arrays([rows[GSN].combine_chunks() for rows in triggers])
        own = OwnRows(self._parts, columns, self._merged.gsn, self._merged.chunk_cut)
        known = own.known()
        wanted = self._wanted(triggers, known)
        if not any(len(values[0]) for _, values in wanted):
            return self._pending
        pool = self._pool(columns, wanted, own, known)
        try:
            images = list(self._run(columns, pool, triggers))
        except ReferenceUnknown as unknown:
            why = "the lake does not know to which value a row refers, since the row's images in the log lacked it"
            raise uncertain(self._table, self._cut, self._keys[unknown.key], why) from unknown
        return derived_parts(self._pending, images, pool.rows, columns, shapes, self._marks, self._began_at)

    # --- what there is

    def _shapes(self) -> Shapes:
        """From which number on rows have which columns."""
        shapes = Shapes()
        if self._current is not None:
            shapes.add_layout(read_layout(self._current), schema_of(self._current))
        for event in self._events:
            told = event_columns(self._table, event)
            if told is not None and event.first_gsn > self._merged.gsn:
                shapes.add(event.first_gsn, "", told.shape)
        for part in self._parts:
            shapes.add(0 if part.file.is_range else part.file.first_gsn, part.file.schema_id, part.shape)
        return shapes

    def _columns(self, shapes: Shapes) -> Columns:
        """All that rows of the batch or of the lake have."""
        held = schema_of(self._current) if self._current is not None else pa.schema([])
        for shape in shapes.found:
            held, refused = grown(held, current_schema(shape.shape))
            if refused is not None:
                raise self._uncertain(f"the type of column {refused} changes in one batch with its parents' rows")
        layout = shapes.last.layout
        if not layout.key:
            raise self._uncertain("the table has no primary key in its rows")
        try:
            return columns_of(held, layout, self._keys, self._itself)
        except KeyError as missing:
            raise self._uncertain("the table has no such columns in the lake") from missing

    def _uncertain(self, why: str) -> CascadeUncertain:
        return uncertain(self._table, self._cut, self._keys[-1], why)

    def _began_at(self, gsn: int) -> int:
        """Where the last dump of before this number began; 0: there was none."""
        return max(found for found in self._begun if found <= gsn)

    # --- the parents' changes

    def _triggers(self, key: FollowedKey, columns: Columns) -> pa.Table:
        types = [columns.held.field(actual(columns.known, name)).type for name in key.columns]
        parent = TableId(self._table.tenant, self._table.source, *key.key.parent)
        moving = frozenset(
            name.lower() for each in self._marks[-1].moving if each.parent == key.key.parent for name in each.columns
        )
        changes = ParentChanges(self._table, self._cut, key, types, moving)
        changelog = None if key in self._itself else open_table(f"{table_folder(self._lake, parent)}/{CHANGELOG}")
        if changelog is None:
            return changes.empty()
        if read_kept(changelog).begins_gsn > self._low + 1:
            raise uncertain(self._table, self._cut, key, "its parent's changelog does not go back so far any more")
        return changes.triggers(changelog, self._low, self._until, self._unchecked(parent))

    def _unchecked(self, parent: TableId) -> list[UncheckedRows]:
        name = (parent.database, parent.table)
        found = [rows for mark in self._marks for rows in mark.unchecked if (rows.database, rows.table) == name]
        if self._low < min(mark.first_gsn for mark in self._marks) - 1:
            found += recorded_unchecked(self._lake, parent, self._low)
        return found

    def _wanted(self, triggers: Sequence[pa.Table], known: pa.Table) -> Wanted:
        """The values that each key looks for, as they compare."""
        found = []
        for key, rows in zip(self._keys, triggers, strict=True):
            values = [rows[old(place)] for place in range(len(key.columns))]
            if key in self._itself:
                gone = known.filter(pc.is_in(known[CHANGE_TYPE], _TAKEN))
                values = [gone[actual(known.column_names, name)] for name in key.parent_columns]
                self._check_images(gone, key)
            found.append((key, [comparable(side, how) for side, how in zip(values, key.comparisons, strict=True)]))
        return found

    def _check_images(self, gone: pa.Table, key: FollowedKey) -> None:
        """Rows that others of their own table refer to have to tell by what."""
        if gone[ABSENT].null_count == gone.num_rows:
            return
        absent = AbsentColumns(gone[ABSENT])
        for name in key.parent_columns:
            lacks = absent.lacks(name)
            if lacks is not None and pc.any(lacks).as_py():
                raise uncertain(self._table, self._cut, key, ROWS_IN_PARTS)

    # --- the rows that may be concerned

    def _pool(self, columns: Columns, wanted: Wanted, own: OwnRows, known: pa.Table) -> Pool:
        chunks = [(part, own.known_of_chunk(part)) for part in own.chunks]
        base = BaseRows(self._current, columns, [rows for _, rows in chunks])
        if self._itself:
            base.keep()
        identities, near = base.concerned(wanted), refers(known, wanted)
        while self._itself:
            wanted = self._widened(wanted, identities, known.filter(near))
            wider, nearer = base.concerned(wanted), refers(known, wanted)
            if wider.num_rows == identities.num_rows and pc.sum(nearer) == pc.sum(near):
                break
            identities, near = wider, nearer
        self._check_texts(wanted, base, known)
        # Of a row whose reference nobody has told, it is the replay that sees whether it is told in time.
        identities = pa.concat_tables([identities, base.unknown(wanted, self._began_at(NEVER))])
        near = reduce(pc.or_, (near, self._referred_to(identities, known), lacks(known, wanted)))
        gsns = concerned_changes(known, identities, columns, near)
        if identities.num_rows + len(gsns) > MOST_CONCERNED_ROWS:
            raise self._uncertain(
                f"{identities.num_rows + len(gsns)} rows may be concerned at once, of at most {MOST_CONCERNED_ROWS}"
            )
        changed = known.filter(pc.is_in(known[GSN], gsns))
        held = base.whole(pa.concat_tables([identities, changed.select(identities.column_names)]))
        pool = Pool(columns, held, own.whole(gsns))
        for part, rows in chunks:
            chosen = own.of_chunk(part, rows, wanted)
            if chosen.num_rows:
                pool.add_chunk(part, self._settled(part, _without_known(part, chosen, known, columns), columns))
        return pool

    def _widened(self, wanted: Wanted, identities: pa.Table, changed: pa.Table) -> Wanted:
        """With what rows that may go themselves are referred to by."""
        found = []
        for key, held in wanted:
            values = held
            if key in self._itself:
                more = [
                    [
                        held[place],
                        *(comparable(rows[actual(rows.column_names, name)], how) for rows in (identities, changed)),
                    ]
                    for place, (name, how) in enumerate(zip(key.parent_columns, key.comparisons, strict=True))
                ]
                values = [
                    pa.chunked_array([chunk for side in sides for chunk in side.chunks], held[0].type) for sides in more
                ]
            found.append((key, values))
        return found

    def _referred_to(self, identities: pa.Table, known: pa.Table) -> pa.Array:
        """Of each own change: whether it takes a row away that others of the table may refer to."""
        found = pa.repeat(pa.scalar(False), known.num_rows)
        for key in self._itself:
            is_referred = pc.is_in(known[CHANGE_TYPE], _TAKEN)
            for name, parent, how in zip(key.columns, key.parent_columns, key.comparisons, strict=True):
                children = [comparable(rows[actual(rows.column_names, name)], how) for rows in (identities, known)]
                values = pa.concat_arrays([side.combine_chunks() for side in children])
                is_there = pc.is_in(comparable(known[actual(known.column_names, parent)], how), values)
                is_referred = pc.and_(is_referred, is_there)
            found = pc.or_(found, is_referred.combine_chunks())
        return found

    def _check_texts(self, wanted: Wanted, base: BaseRows, known: pa.Table) -> None:
        for key, values in wanted:
            for name, how, value in zip(key.columns, key.comparisons, values, strict=True):
                if how is not None and not how.is_binary and len(value):
                    sides = [
                        comparable(side, how) for side in (base.all_of(name), known[actual(known.column_names, name)])
                    ]
                    children = pa.chunked_array([chunk for side in sides for chunk in side.chunks], pa.string())
                    check_certain(self._table, self._cut, key, how, (value, children))

    def _settled(self, part: LandedPart, rows: pa.Table, columns: Columns) -> pa.Table:
        """Those rows of a chunk over which no change of before the batch decides."""
        assert part.file.chunk is not None
        if self._changelog is None or not rows.num_rows:
            return rows
        match = list(columns.match)
        changes = LoggedChanges(self._changelog, columns.layout, columns.held, self._merged.gsn)
        found = changes.of_keys(rows, match, part.file.chunk.gsn, key_bounds(rows, match))
        if part.file.cut <= self._logged.chunk_cut:  # then what its parents have done to it is logged too
            found = found.filter(pc.invert(pc.is_in(found[GSN], self._trigger_gsns)))
        if pc.any(pc.equal(found[CHANGE_TYPE], TRUNCATE)).as_py():
            return rows.slice(0, 0)
        decided = set(row_keys(found, match))
        return rows.filter(pa.array([key not in decided for key in row_keys(rows, match)], pa.bool_()))

    # --- the replay

    def _run(self, columns: Columns, pool: Pool, triggers: Sequence[pa.Table]) -> Iterator[Image]:
        keys = [self._replay_key(key, columns) for key in self._keys]
        identity = [columns.place(name) for name in columns.match]
        replay = Replay(keys, identity, self._began_at(NEVER))
        pool.put(replay, self._above, self._began_at(NEVER))
        ordered = sorted(
            (each for place, rows in enumerate(triggers) for each in _listed(place, rows)), key=lambda each: each.gsn
        )
        pool.check_chunks(keys, ordered, self._uncertain)
        own = [*pool.changes(), *self._removals()]
        unchecked = [(rows.first_gsn, rows.last_gsn) for rows in self._unchecked(self._table)]
        return replay.run(sorted(own, key=lambda each: each.gsn), ordered, unchecked)

    def _replay_key(self, key: FollowedKey, columns: Columns) -> ReplayKey:
        folds = [Fold(how.ignores_case, how.pads) if how is not None else Fold() for how in key.comparisons]
        return ReplayKey(
            tuple(map(columns.place, key.columns)),
            tuple(map(columns.place, key.parent_columns)) if key in self._itself else (),
            key.key.on_delete,
            key.key.on_update,
            key.since,
            key.until,
            tuple(folds),
        )

    def _removals(self) -> list[OwnChange]:
        found = []
        for event in self._events:
            told = event.event
            below = told.gsn if told.removes_rows else told.removes_rows_before_gsn
            if below and told.gsn > self._merged.gsn:
                found.append(OwnChange(told.gsn, Kind.REMOVE_BELOW, (), below, Facts(0, 0, None)))
        return found


def _without_known(part: LandedPart, rows: pa.Table, known: pa.Table, columns: Columns) -> pa.Table:
    """Those rows of a chunk of which the batch does not tell what they were before a change that the chunk may show.

    Where the first such change is an update or a delete, what it found there is what the parents' changes had left. One
    that is inserted first was not there: what they had taken away, the chunk may still show.
    """
    assert part.file.chunk is not None
    match, first = list(columns.match), columns.match[0]
    near = known.filter(
        (pc.field(GSN) > part.file.chunk.gsn)
        & (pc.field(GSN) <= part.file.last_gsn)
        & pc.field(first).isin(rows[first].combine_chunks())
    )
    kinds: dict[tuple[object, ...], str] = {}
    for key, kind in zip(row_keys(near, match), near[CHANGE_TYPE].to_pylist(), strict=True):
        kinds.setdefault(key, kind)
    taken = _TAKEN.to_pylist()
    return rows.filter(pa.array([kinds.get(key) not in taken for key in row_keys(rows, match)], pa.bool_()))


def _listed(key: int, rows: pa.Table) -> Iterator[Trigger]:
    """A key's triggers, by number."""
    count = sum(name.startswith("old") for name in rows.column_names)
    before = zip(*(rows[old(place)].to_pylist() for place in range(count)), strict=True)
    after = zip(*(rows[new(place)].to_pylist() for place in range(count)), strict=True)
    facts = zip(*(rows[name].to_pylist() for name in FACTS), strict=True)
    for gsn, is_delete, was, becomes, fact in zip(
        rows[GSN].to_pylist(), rows[IS_DELETE].to_pylist(), before, after, facts, strict=True
    ):
        yield Trigger(gsn, key, was, None if is_delete else becomes, Facts(*fact))


def recorded_unchecked(lake: str, table: TableId, above_gsn: int) -> list[UncheckedRows]:
    """What earlier batches have recorded of a table's unchecked rows."""
    events = open_table(Records(lake).events_folder)
    if events is None or "unchecked_from_gsn" not in schema_of(events).names:
        return []
    wanted = f"SELECT * FROM t WHERE kind = '{UNCHECKED}' AND _gsn > {above_gsn}"  # noqa: S608  (own name, a number)
    found = scan(events, wanted).read_all().to_pylist()
    of_table = [row for row in found if TableId(row["tenant"], row["source"], row["database"], row["table"]) == table]
    return [UncheckedRows(table.database, table.table, row["unchecked_from_gsn"], row["_gsn"]) for row in of_table]
