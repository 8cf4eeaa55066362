"""The rows of one child while its own changes and those of its parents are replayed in the order of their numbers.

Comes in: rows that are there at some number, the child's own changes, and triggers: values that left, or changed in, a
parent's referenced columns. Goes out: what the keys' actions do, as images of rows. Pure; no I/O, no Arrow.

A row is the values of the columns that keys know of, and a source: where its other values are. At one number the own
change comes first, then what the parents' changes do, then what that does again where a key refers to its own table,
until nothing is left. A row that is changed several times at one number is told once, as it was and as it becomes.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import merge
from typing import NamedTuple

from spark_sink.lake.foreign_keys import Value, Values


class _Unknown(Enum):
    """Of a column that no image has told."""

    UNKNOWN = 0


UNKNOWN = _Unknown.UNKNOWN


@dataclass(frozen=True, slots=True)
class ReplayKey:
    """A key by the places of its columns in a row's values."""

    columns: tuple[int, ...]
    #: of a key that refers to its own table; else empty
    parent_columns: tuple[int, ...]
    on_delete: str
    on_update: str
    since: int
    until: int
    #: of each column: folds a value to what is equal for the key
    folds: "tuple[Fold, ...]"

    def folded(self, values: Sequence[Value]) -> Values:
        return tuple(fold(value) for fold, value in zip(self.folds, values, strict=True))


class Fold(NamedTuple):
    """What `foreign_keys.comparable` does, for one value."""

    ignores_case: bool = False
    pads: bool = False

    def __call__(self, value: Value) -> Value:
        if not isinstance(value, str):
            return value
        if self.ignores_case:
            value = value.translate(_LOWER)
        return value.rstrip(" ") if self.pads else value


_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


@dataclass(frozen=True, slots=True)
class Facts:
    """Of the transaction of a trigger."""

    transaction_id: int
    commit_timestamp_us: int
    position: str | None


class Trigger(NamedTuple):
    gsn: int
    #: place of its key
    key: int
    old: Values
    #: None: the parent's row is gone
    new: Values | None
    facts: Facts


class Kind(Enum):
    PUT = 0
    #: a preimage, whose postimage is the next change
    BEFORE = 1
    AFTER = 2
    DELETE = 3
    #: all rows with a lower number than `source` go
    REMOVE_BELOW = 4


class OwnChange(NamedTuple):
    gsn: int
    kind: Kind
    values: Values
    source: int
    facts: Facts


class Chunk(NamedTuple):
    """A dump's chunk, by its file."""

    path: str


@dataclass(slots=True, eq=False)
class Row:
    values: list[Value]
    #: where its other values are
    source: int
    #: parents' changes with this number or a lower one are in it
    since: int
    #: its `_gsn` at its source
    number: int
    #: None: of the stream
    chunk: Chunk | None = None
    is_alive: bool = True
    #: of a chunk's row: what was told of it since
    told: "list[Image]" = field(default_factory=list)


class Image(NamedTuple):
    """A row before or after a key's action; an `after` of None: it is gone."""

    gsn: int
    source: int
    number: int
    before: Values
    after: Values | None
    facts: Facts
    chunk: Chunk | None


class ReferenceUnknown(Exception):
    """A value left a parent, and a row may refer to it: nobody has told what the row refers to."""

    def __init__(self, key: int) -> None:
        """`key`: its place."""
        self.key = key
        super().__init__("a row lacks the columns of a key")


class Replay:
    """Of one child."""

    def __init__(self, keys: Sequence[ReplayKey], identity: Sequence[int], confirmed_from: int) -> None:
        """`identity`: places of the primary key in a row's values; `confirmed_from`: where the last dump began.

        Of the rows with a lower number that dump's chunks say what became.
        """
        self._keys = keys
        self._identity = tuple(identity)
        self._rows: dict[Values, Row] = {}
        self._by_value: list[defaultdict[Values, dict[int, Row]]] = [defaultdict(dict) for _ in keys]
        #: rows that lack some of a key's columns
        self._unknown: list[dict[int, Row]] = [{} for _ in keys]
        self._moving: Row | None = None
        #: at the number at hand: rows that were changed, each with its values before
        self._touched: dict[int, tuple[Row, Values, Facts]] = {}
        self._chunk_rows: list[Row] = []
        #: those that come at a number of the replay
        self._coming: list[Row] = []
        self._confirmed_from = confirmed_from

    def put(self, row: Row) -> None:
        """A row that is there before the replay begins."""
        if row.chunk is not None:
            self._chunk_rows.append(row)
        self._add(row)

    def put_later(self, row: Row) -> None:
        """A chunk's row, at its number; it is this very row where a confirmed one is there."""
        self._coming.append(row)

    def run(
        self, changes: Iterable[OwnChange], triggers: Iterable[Trigger], unchecked: Sequence[tuple[int, int]]
    ) -> Iterator[Image]:
        """Both in the order of their numbers. `unchecked`: numbers of own changes that no key minds.

        Raises `ReferenceUnknown`.
        """
        pending: deque[Trigger] = deque()
        last = -1
        ordered: Iterator[tuple[int, int, OwnChange | Trigger | Row]] = merge(
            ((change.gsn, 0, change) for change in changes),
            ((trigger.gsn, 1, trigger) for trigger in triggers),
            ((row.since, 2, row) for row in sorted(self._coming, key=lambda row: row.since)),
            key=lambda each: each[:2],
        )
        for gsn, _, each in ordered:
            if gsn != last and (pending or self._touched):
                yield from self._settle(last, pending)
            last = gsn
            if isinstance(each, Row):
                self._come(each)
            elif isinstance(each, Trigger):
                pending.append(each)
            else:
                own = self._change(each)
                if not any(first <= gsn <= until for first, until in unchecked):
                    pending.extend(own)
        yield from self._settle(last, pending)
        for row in self._chunk_rows:
            yield from row.told

    def _come(self, row: Row) -> None:
        held = self._rows.get(self._identity_of(row.values))
        if held is not None and held.number >= self._confirmed_from > 0:
            return
        if held is not None:
            self._remove(held)
        self.put(row)

    # --- own changes

    def _change(self, change: OwnChange) -> list[Trigger]:
        """What it does to rows that refer to its row."""
        if change.kind is Kind.REMOVE_BELOW:
            for row in [row for row in self._rows.values() if row.number < change.source]:
                self._remove(row)
            return []
        identity = self._identity_of(change.values)
        held = self._rows.get(identity)
        if change.kind is Kind.DELETE:
            if held is not None:
                self._remove(held)
            return self._own_triggers(change, self._known(change.values, held), None)
        if change.kind is Kind.BEFORE:
            self._moving = held
            if held is not None:
                self._remove(held)
            else:
                self._moving = Row(list(change.values), change.source, change.gsn, change.gsn, is_alive=False)
            return []
        before, self._moving = self._moving, None
        if held is not None:  # an insert over a row that the log's reader had already, or a move onto one
            self._remove(held)
        values = self._known(change.values, before)
        self._add(Row(list(values), change.source, change.gsn, change.gsn))
        if change.kind is Kind.AFTER and before is not None:
            return self._own_triggers(change, tuple(before.values), values)
        return []

    def _known(self, values: Values, before: Row | None) -> Values:
        if before is None or UNKNOWN not in values:
            return values
        return tuple(there if value is UNKNOWN else value for value, there in zip(values, before.values, strict=True))

    def _own_triggers(self, change: OwnChange, before: Values, after: Values | None) -> list[Trigger]:
        found = []
        for place, key in enumerate(self._keys):
            if not key.parent_columns or not key.since < change.gsn <= key.until:
                continue
            old = tuple(before[column] for column in key.parent_columns)
            new = tuple(after[column] for column in key.parent_columns) if after is not None else None
            if old != new and None not in old and UNKNOWN not in old:
                found.append(Trigger(change.gsn, place, old, new, change.facts))
        return found

    # --- the keys' actions

    def _settle(self, gsn: int, pending: deque[Trigger]) -> Iterator[Image]:
        """Carry out what is pending at this number, and tell what it has done."""
        while pending:
            trigger = pending.popleft()
            key = self._keys[trigger.key]
            action = key.on_delete if trigger.new is None else key.on_update
            if not action:
                continue
            self._check_known(trigger, key)
            rows = self._by_value[trigger.key].get(key.folded(trigger.old), {})
            for row in [row for row in rows.values() if row.since < gsn]:
                pending.extend(self._act(row, trigger, key, action))
        for row, before, facts in self._touched.values():
            after = tuple(row.values) if row.is_alive else None
            if after != before:
                image = Image(gsn, row.source, row.number, before, after, facts, row.chunk)
                if row.chunk is None:
                    yield image
                else:
                    row.told.append(image)
        self._touched.clear()

    def _check_known(self, trigger: Trigger, key: ReplayKey) -> None:
        old = key.folded(trigger.old)
        for row in self._unknown[trigger.key].values():
            values = key.folded([row.values[place] for place in key.columns])
            is_near = all(value in (UNKNOWN, left) for value, left in zip(values, old, strict=True))
            if is_near and row.since < trigger.gsn and row.number >= self._confirmed_from:
                raise ReferenceUnknown(trigger.key)

    def _act(self, row: Row, trigger: Trigger, key: ReplayKey, action: str) -> list[Trigger]:
        before = tuple(row.values)
        self._touched.setdefault(id(row), (row, before, trigger.facts))
        self._remove(row)
        if trigger.new is None and action == "cascade":
            after = None
        else:
            values = trigger.new if action == "cascade" and trigger.new is not None else (None,) * len(key.columns)
            for place, value in zip(key.columns, values, strict=True):
                row.values[place] = value
            row.is_alive = True
            self._add(row)
            after = tuple(row.values)
        change = OwnChange(trigger.gsn, Kind.AFTER, (), row.source, trigger.facts)
        return self._own_triggers(change, before, after)

    # --- rows by their values

    def _identity_of(self, values: Sequence[Value]) -> Values:
        return tuple(values[place] for place in self._identity)

    def _add(self, row: Row) -> None:
        self._rows[self._identity_of(row.values)] = row
        for held in self._referring(row):
            held[id(row)] = row

    def _remove(self, row: Row) -> None:
        row.is_alive = False
        identity = self._identity_of(row.values)
        if self._rows.get(identity) is row:
            del self._rows[identity]
        for held in self._referring(row):
            held.pop(id(row), None)

    def _referring(self, row: Row) -> Iterator[dict[int, Row]]:
        """Where the row is held by what it refers to: NULL refers to nothing."""
        for key, by_value, unknown in zip(self._keys, self._by_value, self._unknown, strict=True):
            values = [row.values[place] for place in key.columns]
            if None not in values:
                yield unknown if UNKNOWN in values else by_value[key.folded(values)]
