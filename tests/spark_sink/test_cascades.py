"""What foreign keys do without a row in the log: the lake beside an engine in memory that carries them out.

The engine logs what a server logs: the rows that statements change themselves. The sink is killed, and started again
with other batch bounds, on the way.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from menura.landing import LandedForeignKey, decode_foreign_key

from spark_sink.lake import changelog as changelog_module
from spark_sink.lake import delta_table, merge
from spark_sink.reading import changelog
from tests.spark_sink.killing import Killed, kill_at
from tests.spark_sink.landing import (
    Batch,
    Change,
    Chunk,
    Event,
    Table,
    Writer,
    altered,
    apply_entries,
    lake_rows,
    table_id,
)

KILLED = ((merge, "merge_effect"), (delta_table, "write_deltalake"), (changelog_module, "append"))
Row = dict[str, object]
INT = pa.int32()


def key(child: str, columns: str, parent: str, parents: str, on_delete: str, on_update: str = "") -> LandedForeignKey:
    names = tuple(columns.split())
    return LandedForeignKey(
        f"{child}_{columns.replace(' ', '_')}", names, ("shop", parent), tuple(parents.split()), on_delete, on_update,
        (None,) * len(names),
    )  # fmt: skip


TABLES = {
    table.name: table
    for table in (
        Table("a", {"id": INT, "code": INT, "note": pa.string()}),
        Table("b", {"id": INT, "a": INT, "note": pa.string()}),
        Table("c", {"id": INT, "b": INT, "a_code": INT}),
        Table("d", {"id": INT, "c": INT, "b": INT}),
        Table("e", {"id": INT, "d": INT}),
        Table("tree", {"id": INT, "up": INT, "a": INT}),
        Table("g", {"a": INT, "n": INT, "on": pa.bool_(), "note": pa.string()}, key=("a", "n", "on")),
        Table("h", {"id": INT, "a": INT, "n": INT, "on": pa.bool_()}),
        Table("alone", {"id": INT}),
    )
}
KEYS = {
    "b": [key("b", "a", "a", "id", "cascade", "cascade")],
    "c": [key("c", "b", "b", "id", "cascade", "cascade"), key("c", "a_code", "a", "code", "set_null", "cascade")],
    "d": [key("d", "c", "c", "id", "cascade", "set_null"), key("d", "b", "b", "id", "set_null")],
    "e": [key("e", "d", "d", "id", "cascade")],
    "tree": [key("tree", "up", "tree", "id", "cascade"), key("tree", "a", "a", "id", "set_null", "cascade")],
    "g": [key("g", "a", "a", "id", "cascade", "cascade")],
    "h": [key("h", "a n on", "g", "a n on", "cascade", "cascade")],
}


@dataclass
class Engine:
    """Rows of all tables; a statement gives what a server logs of it."""

    rows: dict[str, list[Row]] = field(default_factory=lambda: {name: [] for name in TABLES})

    def insert(self, table: str, **row: object) -> list[Change]:
        self.rows[table].append(dict(row))
        return [("insert", row)]

    def delete(self, table: str, row: Row, *, checks: bool = True) -> list[Change]:
        self.rows[table].remove(row)
        if checks:
            for child, foreign in self.keys_to(table):
                for held in self.referring(child, foreign, row):
                    if held not in self.rows[child]:
                        continue
                    if foreign.on_delete == "cascade":
                        self.delete(child, held)
                    elif foreign.on_delete:
                        self.update(child, held, dict.fromkeys(foreign.columns))
        return [("delete", dict(row))]

    def update(self, table: str, row: Row, new: Mapping[str, object], *, checks: bool = True) -> list[Change]:
        before = dict(row)
        row.update(new)
        if checks:
            for child, foreign in self.keys_to(table):
                if any(before[name] != row[name] for name in foreign.parent_columns):
                    values = dict(zip(foreign.columns, (row[name] for name in foreign.parent_columns), strict=True))
                    nothing = dict.fromkeys(foreign.columns)
                    for held in self.referring(child, foreign, before):
                        if foreign.on_update:
                            self.update(child, held, values if foreign.on_update == "cascade" else nothing)
        return [("update_preimage", before), ("update_postimage", dict(row))]

    def keys_to(self, table: str) -> Iterator[tuple[str, LandedForeignKey]]:
        for child, keys in KEYS.items():
            yield from ((child, foreign) for foreign in keys if foreign.parent == ("shop", table))

    def referring(self, child: str, foreign: LandedForeignKey, parent: Row) -> list[Row]:
        values = [parent[name] for name in foreign.parent_columns]
        if None in values:
            return []
        return [row for row in self.rows[child] if [row[name] for name in foreign.columns] == values]


class Workload:
    """Random statements that a server would let through."""

    def __init__(self, seed: int, keys: int = 0) -> None:
        """`keys`: an inserted row's is one of so many, where it is free, and all are checked; 0: each has another."""
        self.random = random.Random(seed)
        self.engine = Engine()
        self.ids = iter(range(1001, 1_000_000))
        self.keys = keys

    def statement(self) -> list[Batch]:
        table = self.random.choice([*TABLES, "a", "a", "b", "tree"])
        rows, chosen = self.engine.rows[table], self.random.random()
        if chosen < 0.5 or not rows:
            return self._own(table, self.engine.insert(table, **self._row(table)))
        row = self.random.choice(rows)
        checks = bool(self.keys) or self.random.random() > 0.1
        if chosen < 0.7:
            changes = self.engine.delete(table, row, checks=checks)
            if self.random.random() < 0.3:  # as a REPLACE does
                again = self.engine.insert(table, **row)
                return [*self._own(table, changes, checks), *self._own(table, again)]
        else:
            changes = self.engine.update(table, row, self._new(table, row), checks=checks)
        return self._own(table, changes, checks)

    def _own(self, table: str, changes: list[Change], checks: bool = True) -> list[Batch]:
        unchecked = [] if checks else [Event(TABLES[table], "FOREIGN_KEYS_UNCHECKED", unchecked_rows=len(changes))]
        return [(TABLES[table], [changes]), *unchecked]

    def _row(self, table: str) -> Row:
        row: Row = {name: self._reference(table, name) for name in TABLES[table].columns}
        if "id" in row:
            held = {other["id"] for other in self.engine.rows[table]}
            free = [key for key in range(1, self.keys + 1) if key not in held]
            row["id"] = self.random.choice(free) if free else next(self.ids)
        if "note" in row:
            row["note"] = f"n{self.random.randrange(9)}"
        if table == "g":
            row |= {"n": next(self.ids), "a": row["a"] or 0, "on": bool(row["on"])}
        return row | ({"code": next(self.ids)} if table == "a" else {})

    def _reference(self, table: str, name: str) -> object:
        """A value that a parent has, NULL, or one that nobody has, as after foreign_key_checks=0."""
        for foreign in KEYS.get(table, ()):
            parents = self.engine.rows[foreign.parent[1]]
            if name in foreign.columns and parents and self.random.random() < 0.85:
                return self.random.choice(parents)[foreign.parent_columns[foreign.columns.index(name)]]
        nobodys = (True, False) if name == "on" else (1_000_000 + self.random.randrange(9),)
        return self.random.choice([None, *nobodys])

    def _new(self, table: str, row: Row) -> Row:
        name = self.random.choice(list(TABLES[table].columns))
        if name == "note":
            return {"note": f"m{self.random.randrange(9)}"}
        if name in ("id", "code", "n"):
            # A tree whose rows follow their parents' new keys is refused by a server.
            return {name: next(self.ids)} if table not in ("h", "tree") else {}
        value = self._reference(table, name)
        if name == "on" and table == "g":
            return {"on": bool(value)}
        if table == "g":
            value = value or 0
            if any(
                other is not row and (other["a"], other["n"]) == (value, row["n"]) for other in self.engine.rows["g"]
            ):
                return {}
        return {name: value}


def told_keys() -> list[Batch]:
    return [Event(TABLES[name], "FOREIGN_KEYS", foreign_keys=tuple(keys)) for name, keys in KEYS.items()]


def expected(engine: Engine, name: str) -> list[Row]:
    return sorted(engine.rows[name], key=repr)


def replayed(lake: Path, table: Table) -> list[Row]:
    """The rows that a replay of the changelog by number leaves."""
    rows = changelog(str(lake), table_id(table)).to_pylist()
    held: dict[tuple[object, ...], Row] = {}
    for row in sorted(rows, key=lambda row: (row["_gsn"], row["_change_type"] in ("insert", "update_postimage"))):
        identity = tuple(row[name] for name in table.key)
        if row["_change_type"] in ("delete", "update_preimage"):
            held.pop(identity, None)
        else:
            held[identity] = {name: row[name] for name in table.columns}
    return sorted(held.values(), key=repr)


def check(outcomes: Sequence[object], lake: Path, engine: Engine) -> None:
    assert [str(outcome) for outcome in outcomes if getattr(outcome, "code", "")] == []
    for name, table in TABLES.items():
        if engine.rows[name] or Path(table_id(table).folder(str(lake))).exists():
            assert lake_rows(lake, table) == expected(engine, name), name
            assert replayed(lake, table) == expected(engine, name), name


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_random_statements_when_keys_act_unlogged_then_the_lake_equals_the_engine_at_each_batch(
    writer: Writer, lake: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = Workload(seed)
    writer.cut(*told_keys())
    first, random_ = 1, random.Random(seed)
    for _ in range(12):
        for _ in range(random_.randint(1, 4)):
            writer.cut(*(batch for _ in range(random_.randint(1, 12)) for batch in workload.statement()))
        if random_.random() < 0.4:
            module, name = random_.choice(KILLED)
            with monkeypatch.context() as patched, suppress(Killed):
                kill_at(patched, module, name, random_.randint(1, 12))
                apply_entries(writer.folder, lake, first=first)
        outcomes = apply_entries(writer.folder, lake, first=random_.choice([1, first]))
        first = writer.entry + 1
        check(outcomes, lake, workload.engine)


DUMPED_CHANGES: dict[str, tuple[list[list[Change]], list[Row], str]] = {
    "deleted": ([[("delete", {"id": 1})]], [{"id": 11, "p": 2}], ""),
    "moved": (
        [[("update_preimage", {"id": 1}), ("update_postimage", {"id": 5})]],
        [{"id": 10, "p": 5}, {"id": 11, "p": 2}],
        "",
    ),
    "moved and back": (
        [
            [("update_preimage", {"id": 1}), ("update_postimage", {"id": 5})],
            [("update_preimage", {"id": 5}), ("update_postimage", {"id": 1})],
        ],
        [],
        "CASCADE_UNCERTAIN",
    ),
}


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("what", DUMPED_CHANGES)
def test_a_chunk_when_its_rows_parents_changed_above_its_number_then_its_rows_follow_them(
    writer: Writer, lake: Path, what: str, together: bool
) -> None:
    """The chunk shows what the child was before; of a value that left and came back it may show either."""
    changes, left, code = DUMPED_CHANGES[what]
    parent, child = Table("p", {"id": INT}), Table("child", {"id": INT, "p": INT})
    keys = (key("child", "p", "p", "id", "cascade", "cascade"),)
    writer.cut(Event(child, "FOREIGN_KEYS", foreign_keys=keys), (parent, [[("insert", {"id": n})] for n in (1, 2)]))
    writer.cut(Event(child, "DUMP_STARTED", dump="dump-1"))
    floor = writer.last_gsns["acme", "shop"]
    writer.cut((parent, changes))
    if not together:
        apply_entries(writer.folder, lake)
    first = 1 if together else writer.entry + 1
    writer.cut(Chunk(child, [{"id": 10, "p": 1}, {"id": 11, "p": 2}], floor))
    writer.cut(Event(child, "DUMPED", dump="dump-1", removes_rows_before_gsn=floor))
    outcomes = apply_entries(writer.folder, lake, first=first)
    assert [outcome.code for outcome in outcomes if outcome.code] == ([code] if code else [])
    if not code:
        assert lake_rows(lake, child) == left


def test_a_chunk_when_a_value_of_its_rows_parents_moves_and_returns_after_it_came_then_its_rows_follow(
    writer: Writer, lake: Path
) -> None:
    """A chunk shows nothing later than the cut that it comes with, however many cuts are applied with it."""
    parent, child = Table("p", {"id": INT}), Table("child", {"id": INT, "p": INT})
    keys = (key("child", "p", "p", "id", "cascade", "cascade"),)
    writer.cut(Event(child, "FOREIGN_KEYS", foreign_keys=keys), (parent, [[("insert", {"id": n})] for n in (1, 2)]))
    writer.cut(Event(child, "DUMP_STARTED", dump="dump-1"))
    first_gsn = writer.last_gsns["acme", "shop"]
    writer.cut((parent, [[("update_preimage", {"id": 2}), ("update_postimage", {"id": 3})]]))
    writer.cut(Chunk(child, [{"id": 10, "p": 1}, {"id": 11, "p": 2}], first_gsn))
    writer.cut(Event(child, "DUMPED", dump="dump-1", removes_rows_before_gsn=first_gsn))
    for before, after in ((1, 5), (5, 1), (3, 2), (2, 4)):
        writer.cut((parent, [[("update_preimage", {"id": before}), ("update_postimage", {"id": after})]]))
    outcomes = apply_entries(writer.folder, lake)
    assert not [str(outcome) for outcome in outcomes if outcome.code]
    assert lake_rows(lake, child) == [{"id": 10, "p": 1}, {"id": 11, "p": 4}]


@pytest.mark.parametrize(
    ("kind", "values", "collation", "code"),
    [(pa.string(), ["a", "b"], "utf8mb4_general_ci", "CASCADE_UNCERTAIN"), (INT, [1, 2], "", "")],
)
def test_a_key_when_a_former_landing_names_its_collation_then_its_texts_are_not_compared(
    writer: Writer, lake: Path, kind: pa.DataType, values: list[object], collation: str, code: str
) -> None:
    """Up to format 6 a key told how its columns compare in words that only its source reads."""
    parent, child = Table("p", {"id": kind}), Table("child", {"id": INT, "p": kind})
    told = asdict(key("child", "p", "p", "id", "cascade", "cascade"))
    del told["comparisons"]
    former = decode_foreign_key({**told, "collations": [collation]})
    first, second = values
    writer.cut(
        Event(child, "FOREIGN_KEYS", foreign_keys=(former,)),
        (parent, [[("insert", {"id": first})]]),
        (child, [[("insert", {"id": 10, "p": first})]]),
    )
    writer.cut((parent, [[("update_preimage", {"id": first}), ("update_postimage", {"id": second})]]))
    outcomes = apply_entries(writer.folder, lake)
    assert [outcome.code for outcome in outcomes if outcome.code] == ([code] if code else [])
    if not code:
        assert lake_rows(lake, child) == [{"id": 10, "p": second}]


@pytest.mark.parametrize(("arrives", "code"), [(True, "CASCADE_UNCERTAIN"), (False, "")])
def test_a_chunk_when_a_row_comes_to_a_key_that_its_parent_has_moved_away_then_is_taken_for_neither(
    writer: Writer, lake: Path, arrives: bool, code: str
) -> None:
    """The chunk may show the row that came: then nothing was there to move. Or the one of before, which has moved."""
    parent, child = Table("p", {"id": INT}), Table("child", {"p": INT, "n": INT}, key=("p", "n"))
    keys = (key("child", "p", "p", "id", "cascade", "cascade"),)
    writer.cut(Event(child, "FOREIGN_KEYS", foreign_keys=keys), (parent, [[("insert", {"id": 1})]]))
    writer.cut(Event(child, "DUMP_STARTED", dump="dump-1"))
    first_gsn = writer.last_gsns["acme", "shop"]
    writer.cut((parent, [[("update_preimage", {"id": 1}), ("update_postimage", {"id": 5})]]))
    came: list[list[Change]] = [[("insert", {"id": 1})]]
    if arrives:
        writer.cut((parent, came), (child, [[("insert", {"p": 1, "n": 0})]]))
    writer.cut(Chunk(child, [{"p": 1, "n": 0}], first_gsn))
    writer.cut(Event(child, "DUMPED", dump="dump-1", removes_rows_before_gsn=first_gsn))
    outcomes = apply_entries(writer.folder, lake)
    assert [outcome.code for outcome in outcomes if outcome.code] == ([code] if code else [])
    if not code:
        assert lake_rows(lake, child) == [{"p": 5, "n": 0}]


@pytest.mark.parametrize("bounds", [(), (3,), (2, 4), (2, 3, 4, 5)])
def test_rows_when_a_key_changes_them_before_a_running_dump_confirms_them_then_the_dump_decides(
    writer: Writer, lake: Path, bounds: Sequence[int]
) -> None:
    """What the server changed unlogged before the dump is in its chunks alone: another note, and rows that are gone."""
    parent, child = Table("p", {"id": INT}), Table("child", {"id": INT, "p": INT, "note": pa.string()})
    keys = (key("child", "p", "p", "id", "cascade", "cascade"),)
    held = [{"id": number, "p": 1, "note": "stale"} for number in (10, 11, 12)]
    writer.cut(
        Event(child, "FOREIGN_KEYS", foreign_keys=keys),
        (parent, [[("insert", {"id": 1})]]),
        (child, [[("insert", row)] for row in held]),
    )
    writer.cut(Event(child, "DUMP_STARTED", dump="dump-1"))
    first_gsn = writer.last_gsns["acme", "shop"]
    writer.cut((parent, [[("update_preimage", {"id": 1}), ("update_postimage", {"id": 2})]]))
    after_gsn = writer.last_gsns["acme", "shop"]
    read = [{"id": 10, "p": 2, "note": "new"}], [{"id": 11, "p": 1, "note": "new"}]
    writer.cut(Chunk(child, read[0], after_gsn), Chunk(child, read[1], first_gsn - 1, range=1))
    writer.cut(Event(child, "DUMPED", dump="dump-1", removes_rows_before_gsn=first_gsn - 1))
    for first, last in zip([1, *bounds], [*(bound - 1 for bound in bounds), None], strict=True):
        outcomes = apply_entries(writer.folder, lake, first=first, last=last)
        assert not [str(outcome) for outcome in outcomes if outcome.code]
    assert lake_rows(lake, child) == [{"id": number, "p": 2, "note": "new"} for number in (10, 11)]


@dataclass
class Reading:
    """A dump of a table while statements go on: its one chunk is read at some moment and comes with a later cut."""

    table: Table
    dump: str
    began_gsn: int
    #: of a cut that was committed before the chunk was read
    floor: int
    rows: list[Row] | None = None
    has_come: bool = False

    def step(self, writer: Writer, engine: Engine, random_: random.Random) -> None:
        """Between two statements."""
        if self.rows is None and random_.random() < 0.3:
            self.rows = [dict(row) for row in engine.rows[self.table.name]]
        elif self.rows is None and random_.random() < 0.3:
            self.floor = writer.last_gsns["acme", "shop"]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_random_statements_when_tables_are_read_again_meanwhile_then_the_lake_equals_the_engine(
    writer: Writer, lake: Path, seed: int
) -> None:
    """Keys come again after their rows are gone, so that a chunk may show a row of before or of after."""
    workload, random_ = Workload(seed, keys=12), random.Random(seed)
    writer.cut(*told_keys())
    for _ in range(8):
        writer.cut(*(batch for _ in range(10) for batch in workload.statement()))
    first = 1
    for round_ in range(4):
        chosen = [(TABLES[name], f"dump-{round_}-{name}") for name in random_.sample(sorted(TABLES), 4)]
        writer.cut(*(Event(table, "DUMP_STARTED", dump=dump) for table, dump in chosen))
        floor = writer.last_gsns["acme", "shop"]
        readings = [Reading(table, dump, floor - len(chosen), floor) for table, dump in chosen]
        while not all(reading.has_come for reading in readings):
            batches: list[Batch] = []
            for _ in range(random_.randint(1, 9)):
                for reading in readings:
                    reading.step(writer, workload.engine, random_)
                batches += workload.statement()
            for reading in readings:
                if reading.rows is not None and not reading.has_come and random_.random() < 0.5:
                    batches.append(Chunk(reading.table, reading.rows, reading.floor, dump=reading.dump))
                    reading.has_come = True
            writer.cut(*batches)
            if random_.random() < 0.3:
                outcomes = apply_entries(writer.folder, lake, first=random_.choice([1, first]))
                assert [str(outcome) for outcome in outcomes if outcome.code] == []
                first = writer.entry + 1
        ends = (
            Event(reading.table, "DUMPED", dump=reading.dump, removes_rows_before_gsn=reading.began_gsn)
            for reading in readings
        )
        writer.cut(*ends, *(batch for _ in range(4) for batch in workload.statement()))
        outcomes = apply_entries(writer.folder, lake, first=random_.choice([1, first]))
        first = writer.entry + 1
        assert [str(outcome) for outcome in outcomes if outcome.code] == []
        for name, table in TABLES.items():
            if Path(table_id(table).folder(str(lake))).exists():
                assert lake_rows(lake, table) == expected(workload.engine, name), (round_, name)


def test_a_child_when_its_parents_key_has_another_type_since_then_it_follows_the_values_of_before(
    writer: Writer, lake: Path
) -> None:
    """The parent's changelog is written first, and has the values of before the change under another name."""
    parent, child = Table("p", {"id": INT}), Table("child", {"id": INT, "p": INT})
    other = Table("p", {"id": pa.float64()})
    writer.cut(Event(child, "FOREIGN_KEYS", foreign_keys=(key("child", "p", "p", "id", "cascade", "cascade"),)))
    writer.cut(
        (parent, [[("insert", {"id": number})] for number in (1, 2, 3)]),
        (child, [[("insert", {"id": number + 10, "p": number})] for number in (1, 2, 3)]),
    )
    writer.cut((parent, [[("delete", {"id": 1})], [("update_preimage", {"id": 2}), ("update_postimage", {"id": 5})]]))
    writer.cut(Event(child, "FOREIGN_KEYS"), altered(other))
    writer.cut((other, [[("insert", {"id": 7.5})], [("delete", {"id": 3.0})]]))
    outcomes = apply_entries(writer.folder, lake)
    assert not [str(outcome) for outcome in outcomes if outcome.code]
    assert lake_rows(lake, child) == [{"id": 12, "p": 5}, {"id": 13, "p": 3}]
    assert {"id", "id~1"} <= set(changelog(str(lake), table_id(parent)).column_names)


@pytest.mark.parametrize(("parents", "childs"), [(pa.bool_(), INT), (INT, pa.bool_())])
def test_a_child_when_its_parents_are_truth_values_and_its_own_are_numbers_then_neither_is_taken_for_the_other(
    writer: Writer, lake: Path, parents: pa.DataType, childs: pa.DataType
) -> None:
    parent, child = Table("p", {"id": parents}), Table("child", {"id": INT, "p": childs})
    writer.cut(Event(child, "FOREIGN_KEYS", foreign_keys=(key("child", "p", "p", "id", "cascade"),)))
    one, same = (True if type_ == pa.bool_() else 1 for type_ in (parents, childs))
    writer.cut((parent, [[("insert", {"id": one})]]), (child, [[("insert", {"id": 11, "p": same})]]))
    writer.cut((parent, [[("delete", {"id": one})]]))
    assert [outcome.code for outcome in apply_entries(writer.folder, lake) if outcome.code] == ["CASCADE_UNCERTAIN"]


_PARTIAL: list[Change] = [
    ("update_preimage", {"id": 10, "p": None, "note": None, "_absent": ("p", "note")}),
    ("update_postimage", {"id": 10, "p": None, "note": "new", "_absent": ("p",)}),
]
_WHOLE = {"id": 10, "p": 1, "note": "new"}
#: what a child's log has of a row whose reference an image lacks; what is left of it; the stop's code
PARTIAL_CHANGES: dict[str, tuple[list[list[Change]], list[Row], str]] = {
    "not in the lake": ([_PARTIAL], [], "CASCADE_UNCERTAIN"),
    "in the lake": ([[("insert", _WHOLE)], _PARTIAL], [], ""),
    "gone before": ([_PARTIAL, [("delete", {"id": 10})]], [], ""),
    "told before": (
        [_PARTIAL, [("update_preimage", _WHOLE), ("update_postimage", {**_WHOLE, "p": 2})]],
        [{**_WHOLE, "p": 2}],
        "",
    ),
}


@pytest.mark.parametrize("bounds", [(), (3,), (4,)])
@pytest.mark.parametrize("what", PARTIAL_CHANGES)
def test_a_child_when_an_image_of_its_row_lacks_what_it_refers_to_then_it_follows_or_stops_where_nobody_has_told_it(
    writer: Writer, lake: Path, what: str, bounds: Sequence[int]
) -> None:
    """The row began before its sync did, or after, and the server logs changed columns alone."""
    changes, left, code = PARTIAL_CHANGES[what]
    parent, child = Table("p", {"id": INT}), Table("child", {"id": INT, "p": INT, "note": pa.string()})
    keys = (key("child", "p", "p", "id", "cascade"),)
    writer.cut(Event(child, "FOREIGN_KEYS", foreign_keys=keys), (parent, [[("insert", {"id": n})] for n in (1, 2)]))
    writer.cut((child, [[("insert", {"id": 11, "p": 1, "note": "beside"})]]))
    writer.cut((child, changes))
    writer.cut((parent, [[("delete", {"id": 1})]]))
    codes = []
    for first, last in zip([1, *bounds], [*(bound - 1 for bound in bounds), None], strict=True):
        outcomes = apply_entries(writer.folder, lake, first=first, last=last)
        codes += [outcome.code for outcome in outcomes if outcome.code]
    assert codes == ([code] if code else [])
    if not code:
        assert lake_rows(lake, child) == left
