"""Rows that lack values, of a keyed table: what an absent column holds is looked up where the row was before.

Comes in: a run of changes in order, some of which name absent columns, and a way to read the lake's rows by key. Goes
out: the changes with their values filled in, so that they merge as whole ones do; what nobody knows (the lake did not
have the row, or an insert did not carry the column) is null and stays named in `_absent`.

A row is followed through the run as one *life*: it begins with an insert, which owes nothing to an earlier row of its
key, or with the lake's row; updates go on with it, also under another key; a delete ends it. A row with a number below
the last dump's start is none that the lake had: that dump began because such rows may be stale. The work per row is a
dictionary's; values move in Arrow, column by column: each is taken from the last change of its life that carried it.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from menura.change_batch import ABSENT, CHANGE_TYPE, UNREPRESENTABLE, ChangeType
from menura.naming import lake_column

from spark_sink.lake.net_effect import DELETED, IS_DELETED
from spark_sink.lake.schema_change import is_own

Key = tuple[object, ...]
#: the lake's rows with one of these keys, in any order; columns as in the current state
ReadRows = Callable[[set[Key]], pa.Table]

GONE = -1
LIFE = "_menura_life"
PLACE = "_menura_place"


@dataclass(slots=True)
class Lives:
    """Which life each change belongs to."""

    #: of each change; `GONE` for those that take a row away
    of_change: list[int] = field(default_factory=list)
    #: of each life the key under which the lake may have the row; None when it began with an insert
    base: list[Key | None] = field(default_factory=list)
    #: the life that each key has at the end; `GONE` where its row was taken away
    alive: dict[Key, int] = field(default_factory=dict)

    def begin(self, base: Key | None) -> int:
        self.base.append(base)
        return len(self.base) - 1


def has_partial(rows: pa.Table) -> bool:
    return bool(rows[ABSENT].null_count < rows.num_rows)


def absent_columns(rows: pa.Table) -> set[str]:
    """Lower-case names of the columns that some row lacks."""
    return {name.lower() for text in rows[ABSENT].unique().to_pylist() if text for name in json.loads(text)}


def completed(ordered: pa.Table, key: Sequence[str], read_rows: ReadRows) -> pa.Table:
    """`ordered` (by `in_order`, with `_change_type` and the columns of the current state) with values for absent ones.

    What stays unknown is named in `_absent`. Rows that are taken away stay as they are, but in a table that keeps them.
    Without `_change_type`.
    """
    keeps = IS_DELETED in ordered.column_names
    lives = lives_of(ordered[CHANGE_TYPE].to_pylist(), row_keys(ordered, key), keeps_deleted=keeps)
    lacking = lives_that_lack(ordered, lives)
    bases = {base: life for life in lacking if (base := lives.base[life]) is not None}
    held = read_rows(set(bases)) if bases else ordered.slice(0, 0).drop_columns([CHANGE_TYPE, DELETED])
    held_lives = [bases.get(found, GONE) for found in row_keys(held, key)]
    filled = filled_in(timeline_of(held, held_lives, ordered, lives.of_change))
    puts = filled.filter(pc.greater_equal(filled[PLACE], 0)).drop_columns([LIFE])
    puts = puts.append_column(DELETED, ordered[DELETED].take(puts[PLACE]))
    lifeless = pa.array([life == GONE for life in lives.of_change], pa.bool_())
    gone = ordered.append_column(PLACE, pa.arange(0, ordered.num_rows, 1)).filter(lifeless)
    return pa.concat_tables([puts, gone.select(puts.column_names)]).sort_by(PLACE).drop_columns([PLACE])


def row_keys(rows: pa.Table, key: Sequence[str]) -> Iterator[Key]:
    return zip(*(rows[name].to_pylist() for name in key), strict=True)


def lives_of(kinds: Sequence[str], keys: Iterator[Key], *, keeps_deleted: bool = False) -> Lives:
    """`keeps_deleted`: what takes a row away is of its life, too."""
    lives = Lives()
    alive = lives.alive
    moving: int | None = None  # the life of the preimage just before
    for kind, key in zip(kinds, keys, strict=True):
        if kind in (ChangeType.update_preimage.name, ChangeType.delete.name):
            life = alive.get(key)
            moving = None
            if life is None or (life == GONE and kind == ChangeType.update_preimage.name):
                life = lives.begin(key if life is None else None)
            if kind == ChangeType.update_preimage.name:
                moving = life
            alive[key] = GONE
            lives.of_change.append(life if keeps_deleted else GONE)
            continue
        if kind == ChangeType.insert.name:
            life = lives.begin(None)
        elif moving is not None:
            life = moving
        else:
            life = alive.get(key, GONE)
            life = lives.begin(None if key in alive else key) if life == GONE else life
        moving = None
        alive[key] = life
        lives.of_change.append(life)
    return lives


def lives_that_lack(ordered: pa.Table, lives: Lives) -> set[int]:
    places = pc.indices_nonzero(ordered[ABSENT].is_valid()).to_pylist()
    return {lives.of_change[place] for place in places} - {GONE}


def timeline_of(held: pa.Table, held_lives: list[int], ordered: pa.Table, of_change: list[int]) -> pa.Table:
    """The lake's rows and the changes that put one, by life and then by place: -1, or the change's own."""
    before = held.append_column(LIFE, pa.array(held_lives, pa.int64()))
    before = before.append_column(PLACE, pa.repeat(pa.scalar(-1, pa.int64()), held.num_rows))
    puts = ordered.drop_columns([CHANGE_TYPE, DELETED]).append_column(LIFE, pa.array(of_change, pa.int64()))
    puts = puts.append_column(PLACE, pa.arange(0, ordered.num_rows, 1))
    both = pa.concat_tables([before, puts.select(before.column_names)])
    both = both.filter(pc.not_equal(both[LIFE], GONE))
    return both.sort_by([(LIFE, "ascending"), (PLACE, "ascending")])


def filled_in(timeline: pa.Table) -> pa.Table:
    """The timeline with the values that its rows lack."""
    columns = [name for name in timeline.column_names if not is_own(name)]
    starts = _starts(timeline[LIFE])
    absent = AbsentColumns(timeline[ABSENT])
    rows = pa.arange(0, timeline.num_rows, 1)
    #: of each column the places in the timeline that its values come from; None where each row has its own
    places: dict[str, pa.Array | None] = dict.fromkeys(columns)
    unknown: dict[str, pa.Array] = {}
    filled = timeline
    for name in columns:
        lacks = absent.lacks(name)
        if lacks is None:
            continue
        known = pc.if_else(pc.and_not(lacks, starts), pa.scalar(None, pa.int64()), rows)
        places[name] = source = pc.fill_null_forward(known)
        filled = filled.set_column(filled.column_names.index(name), name, timeline[name].take(source))
        is_unknown = pc.and_(lacks, starts).take(source)
        if pc.any(is_unknown).as_py():
            unknown[name] = is_unknown
    texts = _unrepresentable(timeline[UNREPRESENTABLE], places)
    filled = filled.set_column(filled.column_names.index(UNREPRESENTABLE), UNREPRESENTABLE, texts)
    return filled.set_column(filled.column_names.index(ABSENT), ABSENT, _absent_texts(timeline.num_rows, unknown))


def _starts(lives: pa.ChunkedArray) -> pa.Array:
    """Whether a row is the first of its life."""
    flat = lives.combine_chunks()
    if not len(flat):
        return pa.array([], pa.bool_())
    later = pc.not_equal(flat.slice(1), flat.slice(0, len(flat) - 1))
    return pa.concat_arrays([pa.array([True]), later])


class AbsentColumns:
    """Which rows lack a column."""

    def __init__(self, absent: pa.ChunkedArray) -> None:
        coded = absent.combine_chunks().dictionary_encode()
        self._of_row = coded.indices
        self._names = [{name.lower() for name in json.loads(text)} for text in coded.dictionary.to_pylist()]

    def lacks(self, column: str) -> pa.Array | None:
        """None where all rows have it."""
        of_text = [column.lower() in names for names in self._names]
        return pa.array(of_text, pa.bool_()).take(self._of_row).fill_null(False) if any(of_text) else None


def _absent_texts(count: int, unknown: dict[str, pa.Array]) -> pa.Array:
    if not unknown:
        return pa.nulls(count, pa.string())
    texts: list[str | None] = []
    for flags in zip(*(of_column.to_pylist() for of_column in unknown.values()), strict=True):
        names = [name for name, is_unknown in zip(unknown, flags, strict=True) if is_unknown]
        texts.append(json.dumps(names, ensure_ascii=False) if names else None)
    return pa.array(texts, pa.string())


def _unrepresentable(texts: pa.ChunkedArray, places: dict[str, pa.Array | None]) -> pa.ChunkedArray | pa.Array:
    """Of each row the entries of the rows that its values come from, in the order of the columns."""
    if texts.null_count == len(texts) or all(place is None for place in places.values()):
        return texts
    entries = [_entries(text) for text in texts.to_pylist()]
    sources = {name.lower(): place.to_pylist() if place is not None else None for name, place in places.items()}
    filled: list[str | None] = []
    for row in range(len(entries)):
        values: dict[str, str] = {}
        for folded, source in sources.items():
            values |= dict(
                [found] if (found := entries[source[row] if source is not None else row].get(folded)) else []
            )
        filled.append(json.dumps(values, ensure_ascii=False, separators=(",", ":")) if values else None)
    return pa.array(filled, pa.string())


def _entries(text: str | None) -> dict[str, tuple[str, str]]:
    """A row's unrepresentable values, each with the source's name, by the lower-case lake name."""
    found: dict[str, str] = json.loads(text) if text is not None else {}
    return {lake_column(name).lower(): (name, value) for name, value in found.items()}
