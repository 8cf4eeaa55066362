"""Whole rows of a child that its parents' changes may concern, as a replay takes them.

Comes in: rows of the current state, own changes of the batch, and rows of chunks that come to be there. Goes out: a
replay's rows and changes; each says where its other values are, as a place in `Pool.rows`. Pure.
"""

from collections.abc import Callable, Collection, Sequence

import pyarrow as pa
from menura.change_batch import ABSENT, CHANGE_TYPE, GSN, ChangeType

from spark_sink.lake.cascade_replay import UNKNOWN, Chunk, Facts, Kind, OwnChange, Replay, ReplayKey, Row, Trigger
from spark_sink.lake.child_rows import FACTS, Columns
from spark_sink.lake.foreign_keys import Values
from spark_sink.lake.partial_rows import AbsentColumns, row_keys
from spark_sink.landed.landed_file import LandedPart

_KINDS = {
    ChangeType.insert.name: Kind.PUT,
    ChangeType.snapshot.name: Kind.PUT,
    ChangeType.update_preimage.name: Kind.BEFORE,
    ChangeType.update_postimage.name: Kind.AFTER,
    ChangeType.delete.name: Kind.DELETE,
}


class Pool:
    """Whole rows that may be concerned, and where each comes from."""

    def __init__(self, columns: Columns, held: pa.Table, own: pa.Table) -> None:
        self._columns = columns
        self._held = held
        self._own = own
        self._chunks: list[tuple[LandedPart, pa.Table]] = []

    @property
    def rows(self) -> pa.Table:
        """All of them; an image's `source` is a place here."""
        names = self._columns.held.names
        return pa.concat_tables([self._held, self._own.select(names), *(rows for _, rows in self._chunks)])

    def add_chunk(self, part: LandedPart, rows: pa.Table) -> None:
        self._chunks.append((part, rows))

    def put(self, replay: Replay, since: int, began_gsn: int) -> None:
        """The lake's rows, and those of chunks that come to be there."""
        held = dict(zip(row_keys(self._held, self._columns.match), self._values(self._held), strict=True))
        numbers = dict(zip(held, self._held[GSN].to_pylist(), strict=True))
        places = {key: place for place, key in enumerate(held)}
        offset = self._held.num_rows + self._own.num_rows
        for part, rows in self._chunks:
            assert part.file.chunk is not None
            gsn = part.file.chunk.gsn
            keys = row_keys(rows, self._columns.match)
            for place, (key, values) in enumerate(zip(keys, self._values(rows), strict=True), offset):
                row = Row(list(values), place, gsn, gsn, chunk=Chunk(part.file.path))
                if gsn > since:
                    replay.put_later(row)
                    continue
                if numbers.get(key, -1) >= began_gsn > 0:
                    continue  # it is this very row
                held.pop(key, None)
                replay.put(row)
            offset += rows.num_rows
        for key, values in held.items():
            replay.put(Row(list(values), places[key], since, numbers[key]))

    def changes(self) -> list[OwnChange]:
        kinds = [_KINDS[kind] for kind in self._own[CHANGE_TYPE].to_pylist()]
        facts = [Facts(*each) for each in zip(*(self._own[name].to_pylist() for name in FACTS), strict=True)]
        rows = zip(self._own[GSN].to_pylist(), kinds, self._values(self._own), facts, strict=True)
        return [
            OwnChange(gsn, kind, values, self._held.num_rows + place, fact)
            for place, (gsn, kind, values, fact) in enumerate(rows)
        ]

    def check_chunks(
        self, keys: Sequence[ReplayKey], triggers: Sequence[Trigger], refuse: Callable[[str], Exception]
    ) -> None:
        """Which row a chunk saw may not be known: of before and after a value of its parent left, it may be either.

        So it is where the value came back by an update; and where the row itself moved with it, and another one came to
        its place. A chunk was read before it came to be there, so what the parents did after that is in none of its
        rows.
        """
        for part, rows in self._chunks:
            assert part.file.chunk is not None
            low, high = part.file.chunk.gsn, part.file.last_gsn
            near = [trigger for trigger in triggers if low < trigger.gsn <= high]
            came, moved = _came_back(keys, near), _moved(keys, near, self._identity)
            if not came and not moved:
                continue
            arrived = self._arrived(high) if moved else {}
            for values in self._values(rows):
                arrived_at = arrived.get(tuple(values[place] for place in self._identity), 0)
                for place, key in enumerate(keys):
                    value = (place, key.folded([values[column] for column in key.columns]))
                    if value in came:
                        raise refuse("a value left the parent and came back by an update while a dump read the table")
                    if moved.get(value, arrived_at) < arrived_at:
                        raise refuse("a row came where another one had moved away from while a dump read the table")

    @property
    def _identity(self) -> list[int]:
        return [self._columns.place(name) for name in self._columns.match]

    def _arrived(self, until_gsn: int) -> dict[Values, int]:
        """By their primary keys: rows that own changes have put there, with the last one's number."""
        return {
            tuple(change.values[place] for place in self._identity): change.gsn
            for change in sorted(self.changes(), key=lambda change: change.gsn)
            if change.kind in (Kind.PUT, Kind.AFTER) and change.gsn <= until_gsn
        }

    def _values(self, rows: pa.Table) -> list[Values]:
        """The known columns, and `UNKNOWN` where the log did not carry them."""
        columns = [rows[name].to_pylist() for name in self._columns.known]
        absent = AbsentColumns(rows[ABSENT]) if rows[ABSENT].null_count < rows.num_rows else None
        for place, name in enumerate(self._columns.known):
            lacks = absent.lacks(name) if absent is not None else None
            if lacks is not None:
                flags = lacks.to_pylist()
                columns[place] = [UNKNOWN if flag else value for flag, value in zip(flags, columns[place], strict=True)]
        return list(zip(*columns, strict=True))


def _came_back(keys: Sequence[ReplayKey], triggers: Sequence[Trigger]) -> set[tuple[int, Values]]:
    """Of each key's place, the values that left the parent and then came to its children again."""
    left: set[tuple[int, Values]] = set()
    came: set[tuple[int, Values]] = set()
    for trigger in triggers:
        key = keys[trigger.key]
        if trigger.new is not None and key.on_update == "cascade":
            new = (trigger.key, key.folded(trigger.new))
            if new in left:
                came.add(new)
        left.add((trigger.key, key.folded(trigger.old)))
    return came


def _moved(
    keys: Sequence[ReplayKey], triggers: Sequence[Trigger], identity: Collection[int]
) -> dict[tuple[int, Values], int]:
    """Of each key's place, the values that left the parent and took rows of the child to other primary keys: when."""
    moved: dict[tuple[int, Values], int] = {}
    for trigger in triggers:
        key = keys[trigger.key]
        if trigger.new is not None and key.on_update == "cascade" and not set(key.columns).isdisjoint(identity):
            moved.setdefault((trigger.key, key.folded(trigger.old)), trigger.gsn)
    return moved
