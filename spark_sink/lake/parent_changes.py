"""What a table's changes do to those that refer to it: values that left its referenced columns, and what came instead.

Comes in: the parent's changelog, which by now has all of its changes of the batch: those that were logged and those
that its own parents' changes have made of it. Goes out: a table of triggers in the order of their numbers, with the
columns `TRIGGER_COLUMNS` and, for each referenced column, the value before (`old0`, ...) and after (`new0`, ...; null
where the row is gone). Changes that leave the referenced columns alone, and those of NULL, are left out.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from menura.change_batch import (
    ABSENT,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP_US,
    GSN,
    POSITION,
    TRANSACTION_ID,
    UNREPRESENTABLE,
    ChangeType,
)
from menura.naming import lake_column, name_before

from spark_sink.lake.delta_table import quoted, scan, schema_of
from spark_sink.lake.foreign_keys import FollowedKey, uncertain
from spark_sink.lake.partial_rows import AbsentColumns
from spark_sink.work import TableId, UncheckedRows

TRIGGER_COLUMNS = (GSN, TRANSACTION_ID, COMMIT_TIMESTAMP_US, POSITION)
IS_DELETE = "is_delete"

_DELETE, _BEFORE, _AFTER = ChangeType.delete.name, ChangeType.update_preimage.name, ChangeType.update_postimage.name
ROWS_IN_PARTS = "the parent's rows in the log lack its columns: have the source's log hold all values of each row"


def old(place: int) -> str:
    return f"old{place}"


def new(place: int) -> str:
    return f"new{place}"


class ParentChanges:
    """Of one key, for one child."""

    def __init__(
        self, child: TableId, cut: int, key: FollowedKey, types: Sequence[pa.DataType], moving: frozenset[str]
    ) -> None:
        """`types`: of the child's columns; `moving`: lower-case columns that the parent's own keys change."""
        self._child = child
        self._cut = cut
        self._key = key
        self._types = types
        self._moving = moving

    def triggers(
        self, changelog: DeltaTable, above_gsn: int, until_gsn: int, unchecked: Sequence[UncheckedRows]
    ) -> pa.Table:
        """Raises `CascadeUncertain`."""
        low, high = max(above_gsn, self._key.since), min(until_gsn, self._key.until)
        if low >= high:
            return self.empty()
        rows = self._read(changelog, low, high, unchecked)
        return self._of_rows(rows) if rows.num_rows else self.empty()

    def empty(self) -> pa.Table:
        """No trigger."""
        fields = [(GSN, pa.int64()), (TRANSACTION_ID, pa.int64()), (COMMIT_TIMESTAMP_US, pa.int64())]
        fields += [(POSITION, pa.string()), (IS_DELETE, pa.bool_())]
        fields += [(name(place), type_) for name in (old, new) for place, type_ in enumerate(self._types)]
        return pa.schema(fields).empty_table()

    def _read(self, changelog: DeltaTable, low: int, high: int, unchecked: Sequence[UncheckedRows]) -> pa.Table:
        held = schema_of(changelog).names
        # Of a parent that has no such column any more, the changes from when it had are asked for under its old name.
        sources = [
            [found for found in held if name_before(found).lower() == name.lower()] for name in self._key.parent_columns
        ]
        if not all(sources):
            raise uncertain(self._child, self._cut, self._key, "the parent's rows in the lake have no such columns")
        there = [name for names in sources for name in names]
        chosen = ", ".join(map(quoted, [CHANGE_TYPE, *TRIGGER_COLUMNS, ABSENT, UNREPRESENTABLE, *there]))
        kinds = ", ".join(f"'{kind}'" for kind in (_DELETE, _BEFORE, _AFTER))
        # A postimage stands one above its preimage.
        condition = f"{quoted(GSN)} > {low} AND {quoted(GSN)} <= {high} AND {quoted(CHANGE_TYPE)} IN ({kinds})"
        for rows in unchecked:
            condition += f" AND NOT {quoted(GSN)} BETWEEN {rows.first_gsn} AND {rows.last_gsn}"
        found = scan(changelog, f"SELECT {chosen} FROM t WHERE {condition}").read_all()  # noqa: S608  (quoted names)
        order = pc.not_equal(found[CHANGE_TYPE], _BEFORE)  # a preimage first
        found = found.append_column("order", order).sort_by([(GSN, "ascending"), ("order", "ascending")])
        columns = {name: found[name] for name in (CHANGE_TYPE, *TRIGGER_COLUMNS, ABSENT, UNREPRESENTABLE)}
        values = [self._value(found, names, place) for place, names in enumerate(sources)]
        return pa.table({**columns, **{f"c{place}": value for place, value in enumerate(values)}})

    def _value(self, rows: pa.Table, names: Sequence[str], place: int) -> pa.ChunkedArray:
        """A referenced column. Where its type has changed its values stand in several, of one row at most in one."""
        if len(names) == 1:
            return rows[names[0]]
        return pc.coalesce(*(self._cast(rows[name], self._types[place]) for name in names))

    def _of_rows(self, rows: pa.Table) -> pa.Table:
        kinds, gsns = rows[CHANGE_TYPE].combine_chunks(), rows[GSN].combine_chunks()
        deleted = rows.filter(pc.equal(kinds, _DELETE))
        count = rows.num_rows - 1
        follows = pc.equal(pc.subtract(gsns.slice(1), gsns.slice(0, count)), 1)
        is_pair = pc.and_(pc.equal(kinds.slice(0, count), _BEFORE), pc.equal(kinds.slice(1), _AFTER))
        places = pc.indices_nonzero(pc.and_(is_pair, follows)).cast(pa.int64())
        pairs = [(rows.take(places), rows.take(pc.add(places, 1)))]
        derived = self._derived_pairs(rows, places)
        if derived is not None:
            pairs.append(derived)
        found = [self._triggers(deleted, None)]
        found += [self._triggers(*self._changed(before, after)) for before, after in pairs if before.num_rows]
        return pa.concat_tables(found).sort_by(GSN)

    def _derived_pairs(self, rows: pa.Table, logged: pa.Array) -> tuple[pa.Table, pa.Table] | None:
        """Updates that the parent's own keys have made: images of several rows have one number.

        In one of them a key's columns have one new value in all rows, so what else refers tells which images belong
        together.
        """
        is_logged = pc.is_in(pa.arange(0, rows.num_rows, 1), pa.concat_arrays([logged, pc.add(logged, 1)]))
        is_image = pc.not_equal(rows[CHANGE_TYPE], _DELETE)
        places = pc.indices_nonzero(pc.and_(is_image, pc.invert(is_logged))).to_pylist()
        if not places:
            return None
        kept = [f"c{place}" for place, name in enumerate(self._key.parent_columns) if name.lower() not in self._moving]
        images = rows.take(pa.array(places, pa.int64()))
        waiting: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
        before, after = [], []
        fixed = images.select([GSN, *kept]).to_pylist()
        for place, kind, identity in zip(places, images[CHANGE_TYPE].to_pylist(), fixed, strict=True):
            same = waiting[tuple(identity.values())]
            if kind == _BEFORE:
                same.append(place)
            elif same:
                before.append(same.pop(0))
                after.append(place)
        return rows.take(pa.array(before, pa.int64())), rows.take(pa.array(after, pa.int64()))

    def _changed(self, before: pa.Table, after: pa.Table) -> tuple[pa.Table, pa.Table]:
        """The pairs that differ in the referenced columns; both sides with the values of after where those lack."""
        differs = pa.array([False] * before.num_rows)
        for place, name in enumerate(self._key.key.parent_columns):
            column = f"c{place}"
            lacking, lacked = self._lacks(after, name), self._lacks(before, name)
            if lacking is not None:
                kept = pc.if_else(lacking, before[column], after[column])
                after = after.set_column(after.column_names.index(column), column, kept)
            if lacked is not None:
                told = lacked if lacking is None else pc.and_not(lacked, lacking)
                if pc.any(told).as_py():
                    raise uncertain(self._child, self._cut, self._key, ROWS_IN_PARTS)
            same = pc.or_(
                pc.equal(before[column], after[column]).fill_null(False),
                pc.and_(before[column].is_null(), after[column].is_null()),
            )
            differs = pc.or_(differs, pc.invert(same).combine_chunks())
        self._check_representable([before, after])
        return before.filter(differs), after.filter(differs)

    def _triggers(self, before: pa.Table, after: pa.Table | None) -> pa.Table:
        """Rows that went, or what became of them."""
        if after is None:
            if any(
                lacked is not None and pc.any(lacked).as_py()
                for lacked in (self._lacks(before, name) for name in self._key.key.parent_columns)
            ):
                raise uncertain(self._child, self._cut, self._key, ROWS_IN_PARTS)
            self._check_representable([before])
        facts = before if after is None else after
        columns: dict[str, pa.Array | pa.ChunkedArray] = {name: facts[name] for name in TRIGGER_COLUMNS}
        columns[IS_DELETE] = pa.repeat(pa.scalar(after is None), before.num_rows)
        for place, type_ in enumerate(self._types):
            columns[old(place)] = self._cast(before[f"c{place}"], type_)
        for place, type_ in enumerate(self._types):
            nothing = pa.nulls(before.num_rows, type_)
            columns[new(place)] = nothing if after is None else self._cast(after[f"c{place}"], type_)
        found = pa.table(columns)
        for place in range(len(self._types)):  # NULL refers to nothing
            found = found.filter(found[old(place)].is_valid())
        return found.select(self.empty().column_names).cast(self.empty().schema)

    def _cast(self, column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
        why = "the parent's values do not fit the type of the child's columns in the lake"
        if pa.types.is_boolean(column.type) != pa.types.is_boolean(type_):  # Arrow would take any number for true
            raise uncertain(self._child, self._cut, self._key, why)
        try:
            return column.cast(type_)
        except pa.ArrowException as refused:
            raise uncertain(self._child, self._cut, self._key, why) from refused

    def _lacks(self, rows: pa.Table, name: str) -> pa.Array | None:
        return AbsentColumns(rows[ABSENT]).lacks(lake_column(name)) if rows[ABSENT].null_count < len(rows) else None

    def _check_representable(self, sides: Iterable[pa.Table]) -> None:
        """A value that its type can't hold refers to nothing here, and does so at the server."""
        folded = {name.lower() for name in self._key.key.parent_columns}
        for rows in sides:
            for text in rows[UNREPRESENTABLE].unique().to_pylist():
                if text is not None and folded & {name.lower() for name in json.loads(text)}:
                    why = "a value of the parent is none that its type in the lake can hold"
                    raise uncertain(self._child, self._cut, self._key, why)
