"""The lake beside a plain model in memory, under random rows, partial rows, truncates and changes of columns.

The sink is killed and started again with other batch bounds on the way.
"""

import itertools
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_sink.errors import TableNotInLake
from spark_sink.ingest.table_writer import merge_waiting
from spark_sink.lake import changelog as changelog_module
from spark_sink.lake import delta_table, merge, tail
from spark_sink.lake.table_options import PLAIN_TABLES, OptionRules
from spark_sink.lake.tail import AT_ONCE, Waiting
from spark_sink.reading import changelog, current_state
from spark_sink.work import TableId
from tests.spark_sink.killing import Killed, kill_at
from tests.spark_sink.landing import (
    Batch,
    Change,
    Event,
    Table,
    Writer,
    altered,
    apply_entries,
    delete,
    insert,
    table_id,
    truncate,
    update,
)

KEYS = 6
KILLED = (
    (merge, "merge_effect"),
    (tail, "merge_effect"),
    (delta_table, "write_deltalake"),
    (changelog_module, "append"),
)
#: whether changes are merged at once, wait till something else comes, or till they are some
WAITINGS = (AT_ONCE, Waiting(3600, -1, part_of_table=1e9), Waiting(3600, -1, 6, 1e9))


@dataclass(frozen=True, eq=False)
class Unknown:
    """What the lake can't know."""

    #: what the source has, where the log tells it later
    value: object = None

    def __repr__(self) -> str:
        return "?"


UNKNOWN = Unknown()
TYPES = {"text": pa.string(), "number": pa.int32(), "real": pa.float64(), "bytes": pa.binary(), "truth": pa.bool_()}
#: of a table of that name that comes later
OTHER = {"text": "number", "number": "text", "real": "truth", "bytes": "real", "truth": "bytes"}
#: that it can't
REFUSED = {"text": "bytes", "bytes": "truth", "truth": "text", "real": "number", "number": "real"}

#: what happens, and three small numbers that choose among what is possible then
Step = tuple[str, int, int, int]
WEIGHTS = {"insert": 6, "update": 8, "move": 3, "delete": 1, "cut": 2, "apply": 3, "kill": 2, "replay": 1} | {
    "truncate": 1, "add": 2, "rename": 1, "drop": 1, "again": 1, "retype": 2
}  # fmt: skip
STEPS = st.lists(
    st.tuples(
        st.sampled_from([kind for kind, weight in WEIGHTS.items() for _ in range(weight)]),
        st.integers(0, 31),
        st.integers(0, 31),
        st.integers(0, 31),
    ),
    min_size=10,
    max_size=40,
)


@dataclass
class Model:
    """The source's table, as far as the log tells; rows of keys that it never told of are unknown."""

    is_keyed: bool
    columns: dict[str, str] = field(default_factory=lambda: {"id": "number", "a": "text", "b": "number", "c": "truth"})
    #: in the lake: by key, or in any order
    rows: list[dict[str, object]] = field(default_factory=list)
    names: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    @property
    def table(self) -> Table:
        types = {name: TYPES[kind] for name, kind in self.columns.items()}
        return Table("t", types, key=("id",) if self.is_keyed else ())

    def value(self, name: str, chosen: int) -> object:
        if chosen % 5 == 0 and name != "id":
            return None
        text = f"{name}{chosen}"
        values = {"number": chosen, "real": chosen / 2, "text": text, "bytes": text.encode(), "truth": chosen % 2 == 1}
        return values[self.columns[name]]

    def find(self, key: int) -> dict[str, object] | None:
        return next((row for row in self.rows if row["id"] == key), None)

    def row(self, key: int, chosen: int, mask: int) -> dict[str, object]:
        """A new row; where there is a key, columns in `mask` are not in the log."""
        row = {name: self.value(name, chosen) for name in self.columns} | {"id": key}
        return {name: UNKNOWN if self.is_keyed and self.lacks(name, mask) else value for name, value in row.items()}

    def lacks(self, name: str, mask: int) -> bool:
        return name != "id" and bool(mask >> list(self.columns).index(name) & 1)

    def insert(self, key: int, chosen: int, mask: int) -> list[list[Change]]:
        if self.is_keyed and self.find(key):
            return []
        self.rows.append(self.row(key, chosen, mask))
        return [insert(**logged(self.rows[-1]))]

    def update(self, key: int, to: int, chosen: int, mask: int) -> list[list[Change]]:
        held = self.find(key)
        if self.is_keyed:
            if held is None:  # of a row from before the log
                held = dict.fromkeys(self.columns, UNKNOWN) | {"id": key}
            else:
                self.rows.remove(held)
            if to != key and self.find(to):
                to = key
            after = self.row(to, chosen, mask)
            before = {name: value if name == "id" else UNKNOWN for name, value in held.items()}
            known = {name: held[name] if isinstance(value, Unknown) else value for name, value in after.items()}
            self.rows.append(known)
            return [update(logged(before), logged(after))]
        if held is None:
            return []
        before = self.take(held)
        self.rows.append(self.row(to, chosen, 0))
        return [update(before, logged(self.rows[-1]))]

    def delete(self, key: int) -> list[list[Change]]:
        held = self.find(key)
        if held is None:
            return []
        if not self.is_keyed:
            return [delete(**self.take(held))]
        self.rows.remove(held)
        return [delete(**logged(dict.fromkeys(held, UNKNOWN) | {"id": key}))]

    def take(self, held: dict[str, object]) -> dict[str, object]:
        """Of a table without a key: away with the row, or with one that the lake can't tell from it and knows more of.

        What the row holds in the source, which the log tells.
        """
        true = revealed(held)
        alike = [row for row in self.rows if all(isinstance(v, Unknown) or v == true[n] for n, v in row.items())]
        taken = min(alike, key=lambda row: sum(isinstance(value, Unknown) for value in row.values()))
        self.rows.remove(taken)
        if taken is not held:
            left = revealed(taken)
            held |= {name: Unknown(left[name]) for name, value in held.items() if isinstance(value, Unknown)}
        return true

    def add(self, chosen: int) -> Event:
        name, kind = f"c{next(self.names)}", ("text", "number", "truth", "truth")[chosen % 4]
        self.columns[name] = kind
        literal, held = {"text": ("7", "7"), "number": ("7", 7), "truth": ("true", True)}[kind]
        earlier, value = [(None, None), (literal, held), (..., ...)][chosen % 3]
        for place, row in enumerate(self.rows):
            row[name] = Unknown(self.value(name, place)) if value is ... else value
        return altered(self.table, added={name: earlier})

    def retype(self, chosen: int) -> Event | None:
        """What the lake's column can't hold."""
        others = [name for name in self.columns if name != "id"]
        if not others:
            return None
        name = others[chosen % len(others)]
        self.columns[name] = REFUSED[self.columns[name]]
        for place, row in enumerate(self.rows):
            row[name] = Unknown(self.value(name, chosen + place % 3))
        return altered(self.table)

    def rename(self, chosen: int) -> Event | None:
        others = [name for name in self.columns if name != "id"]
        if not others:
            return None
        before, after = others[chosen % len(others)], f"r{next(self.names)}"
        self.columns = {after if name == before else name: kind for name, kind in self.columns.items()}
        self.rows = [{after if name == before else name: value for name, value in row.items()} for row in self.rows]
        return altered(self.table, renamed={after: before})

    def drop(self, chosen: int) -> Event | None:
        others = [name for name in self.columns if name != "id"]
        if len(others) < 2:
            return None
        del self.columns[others[chosen % len(others)]]
        self.rows = [{name: row[name] for name in self.columns} for row in self.rows]
        return altered(self.table)

    def again(self) -> tuple[Event, Event]:
        """DROP and CREATE with each column's other type."""
        gone = Event(self.table, "DROPPED", removes_rows=True)
        self.columns = {name: OTHER[kind] if name != "id" else kind for name, kind in self.columns.items()}
        self.rows.clear()
        return gone, altered(self.table, kind="CREATED")


def revealed(row: dict[str, object]) -> dict[str, object]:
    return {name: value.value if isinstance(value, Unknown) else value for name, value in row.items()}


def logged(row: dict[str, object]) -> dict[str, object]:
    absent = tuple(name for name, value in row.items() if isinstance(value, Unknown))
    values = {name: None if isinstance(value, Unknown) else value for name, value in row.items()}
    return {**values, "_absent": absent} if absent else values


@dataclass
class Run:
    """The sink over a growing log."""

    writer: Writer
    lake: Path
    #: of the cut that is open
    batches: list[Batch] = field(default_factory=list)
    applied: int = 0
    changes: int = 0
    #: batches whose changes were not merged with them
    waited: int = 0
    options: OptionRules = PLAIN_TABLES

    def log(self, table: Table, changes: list[list[Change]]) -> None:
        if changes:
            self.batches.append((table, changes))
            self.changes += sum(map(len, changes))

    def end_cut(self) -> None:
        if self.batches:
            self.writer.cut(*self.batches)
            self.batches = []

    def apply(self, first: int, last: int | None = None) -> None:
        waiting = WAITINGS[(self.applied * 7 + first) % len(WAITINGS)]
        applied = apply_entries(
            self.writer.folder, self.lake, first=first, last=last, waiting=waiting, table_options=self.options
        )
        for outcome in applied:
            assert outcome.message == ""
            self.waited += outcome.merged_gsn > 0
            if outcome.merged_gsn and outcome.cut % 4 == 0:
                self.read_and_merge(outcome.table)

    def read_and_merge(self, table: TableId) -> None:
        """What waited is read as it is once it is merged."""
        before = current_state(str(self.lake), table, with_deleted=True)
        merge_waiting(str(self.lake), table)
        after = current_state(str(self.lake), table, with_deleted=True)
        assert Counter(map(repr, before.to_pylist())) == Counter(map(repr, after.to_pylist()))

    def catch_up(self) -> None:
        self.end_cut()
        if self.applied < self.writer.entry:
            self.apply(self.applied + 1)
            self.applied = self.writer.entry

    def kill(self, where: int, call: int, last: int, killed: Sequence[tuple[ModuleType, str]] = KILLED) -> None:
        """Then some of what it was about is done again, in a batch with another end."""
        self.end_cut()
        begin, count = self.applied + 1, self.writer.entry - self.applied
        with pytest.MonkeyPatch.context() as patched:
            kill_at(patched, *killed[where % len(killed)], call % 4 + 1)
            with suppress(Killed):
                self.catch_up()
        if self.applied < begin <= self.writer.entry:
            self.apply(begin, begin + last % count)

    def replay(self, first: int, last: int) -> None:
        """Entries that were applied, from a lost checkpoint, in other batches; then the rest."""
        self.end_cut()
        if self.applied:
            begin = first % self.applied + 1
            end = begin + last % (self.applied - begin + 1)
            self.apply(begin, end)
            if end < self.applied:
                self.apply(end + 1, self.applied)


def play(model: Model, run: Run, step: Step) -> None:
    kind, one, two, three = step
    table = model.table
    if kind == "insert":
        run.log(table, model.insert(one % KEYS, two, three))
    elif kind in ("update", "move"):
        run.log(table, model.update(one % KEYS, (one if kind == "update" else two) % KEYS, two, three))
    elif kind == "delete":
        run.log(table, model.delete(one % KEYS))
    elif kind == "truncate":
        model.rows.clear()
        run.batches.append(truncate(table))
    elif kind == "cut":
        run.end_cut()
    elif kind == "apply":
        run.catch_up()
        check(model, run)
    elif kind == "kill":
        run.kill(one, two, three)
    elif kind == "replay":
        run.replay(one, two)
    elif kind == "again":
        run.batches.extend(model.again())
    else:
        event = {"add": model.add, "rename": model.rename, "drop": model.drop, "retype": model.retype}[kind](one)
        run.batches.extend([event] if event else [])


def lake_contents(lake: Path, table: Table) -> Counter[str]:
    """Rows as the model has them."""
    found = current_state(str(lake), table_id(table)).to_pylist()
    rows = []
    for row in found:
        unknown = row["_absent"] or "[]"
        rows.append({name: UNKNOWN if f'"{name}"' in unknown else row[name] for name in table.columns})
    return Counter(map(repr, rows))


def check(model: Model, run: Run) -> None:
    try:
        log = changelog(str(run.lake), table_id(model.table))
    except TableNotInLake:
        assert not model.rows and not run.changes
        return
    assert lake_contents(run.lake, model.table) == Counter(map(repr, model.rows))
    numbers = log.filter(pc.not_equal(log["_change_type"], "truncate"))["_gsn"].to_pylist()
    assert len(numbers) == len(set(numbers)) == run.changes


@pytest.mark.long
@pytest.mark.parametrize("is_keyed", [True, False], ids=["keyed", "keyless"])
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
def test_random_changes_and_events_when_the_sink_is_killed_and_replayed_then_the_lake_equals_the_model(
    is_keyed: bool, steps: list[Step]
) -> None:
    with tempfile.TemporaryDirectory(prefix="menura-model-") as folder:
        model, run = Model(is_keyed), Run(Writer(Path(folder) / "landing"), Path(folder) / "lake")
        for step in steps:
            play(model, run, step)
        run.batches.append(altered(model.table))
        run.catch_up()
        check(model, run)
