"""Kinds of schema changes, what a lake must hold after each under each policy, and the document that says so.

The expectation is computed here on plain dictionaries, from the policies' rules as docs/lake-settings.md gives them;
it shares no code with the sink. `python -m tests.spark_sink.schema_policy_cases` writes spark_sink/SCHEMA_CHANGES.md
from what the sink really does; the tests compare both.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from spark_sink.lake.delta_table import open_table
from spark_sink.lake.schema_policy import Departure, SchemaPolicy, SchemaRules, read_departure
from spark_sink.reading import current_state
from spark_sink.work import Outcome
from tests.spark_sink.landing import (
    Batch,
    Event,
    Table,
    Writer,
    altered,
    apply_entries,
    insert,
    table_id,
    truncate,
    update,
)

DOCUMENT = Path(__file__).parents[2] / "spark_sink" / "SCHEMA_CHANGES.md"
OWN = ("_unrepresentable", "_absent", "_gsn")

Row = dict[str, object]
BEFORE = Table("t", {"id": pa.int32(), "a": pa.string(), "n": pa.int32()})
#: rows of before a change: the first is changed after it, the second is not
ROWS: Sequence[Row] = ({"id": 1, "a": "x", "n": 10}, {"id": 2, "a": "y", "n": 20})
NUMBER, OTHER = pa.decimal128(20, 0), pa.float64()


@dataclass(frozen=True)
class Add:
    name: str
    default: object


@dataclass(frozen=True)
class Drop:
    name: str


@dataclass(frozen=True)
class Rename:
    old: str
    new: str


@dataclass(frozen=True)
class Retype:
    """`fits`: the lake's column takes the new type as it is; `widens`: it takes it once it is wider."""

    name: str
    fits: bool = False
    widens: bool = False


@dataclass(frozen=True)
class Remove:
    kind: str


@dataclass(frozen=True)
class Put:
    rows: Sequence[Row]


Step = Add | Drop | Rename | Retype | Remove | Put


@dataclass(frozen=True)
class Case:
    name: str
    statement: str
    #: what lands after the rows of before, a cut each
    batches: Sequence[Sequence[Batch]]
    steps: Sequence[Step]


@dataclass
class Expected:
    """A lake's table, by the policies' rules."""

    policy: SchemaPolicy
    columns: list[str] = field(default_factory=lambda: list(BEFORE.columns))
    live: list[str] = field(default_factory=lambda: list(BEFORE.columns))
    rows: list[Row] = field(default_factory=lambda: [dict(row) for row in ROWS])
    not_followed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    rows_stay: str = ""

    @property
    def keeps(self) -> bool:
        return self.policy in ("lenient", "ignore")

    def follow(self, step: Step) -> None:
        if isinstance(step, Put):
            for row in step.rows:
                self.rows = [held for held in self.rows if held["id"] != row["id"]]
                self.rows.append({name: row.get(name) if name in self.live else None for name in self.columns})
        elif isinstance(step, Remove):
            if self.keeps:
                self.rows_stay = step.kind
            else:
                self.rows = []
        elif self.policy == "ignore":
            self._ignore(step)
        else:
            self._evolve(step)

    def _ignore(self, step: Step) -> None:
        if isinstance(step, Add) and step.name in self.columns:
            self._fill(step.name, lambda row: step.default)
            self.live.append(step.name)
            self.kept.remove(step.name)
        elif isinstance(step, Add):
            self.not_followed.append(step.name)
        elif isinstance(step, Drop):
            self._leave(step.name)
        elif isinstance(step, Rename):
            self._leave(step.old)
            self.not_followed.append(step.new)
        elif isinstance(step, Retype) and not step.fits:
            self._leave(step.name)
            self.not_followed.append(step.name)

    def _evolve(self, step: Step) -> None:
        if isinstance(step, Add):
            self._put(step.name, lambda row: step.default)
        elif isinstance(step, Drop):
            self._leave(step.name)
        elif isinstance(step, Rename):
            self._put(step.new, lambda row: row[step.old])
            self._leave(step.old)
        elif isinstance(step, Retype) and not step.fits and not step.widens:
            self._put(step.name, lambda row: None)

    def _leave(self, name: str) -> None:
        """The source has the column no more."""
        self.live.remove(name)
        if self.keeps:
            self.kept.append(name)
        else:
            self._fill(name, lambda row: None)

    def _put(self, name: str, value: Callable[[Row], object]) -> None:
        """A new column; what the lake had under its name goes aside, or goes."""
        if name in self.columns and self.keeps:
            self.columns.append(f"{name}~1")
            self._fill(f"{name}~1", lambda row: row[name])
            self.kept = [held for held in self.kept if held != name] + [f"{name}~1"]
        if name not in self.columns:
            self.columns.append(name)
        if name not in self.live:
            self.live.append(name)
        self._fill(name, value)

    def _fill(self, name: str, value: Callable[[Row], object]) -> None:
        self.rows = [{**row, name: value(row)} for row in self.rows]


def expected(policy: SchemaPolicy, case: Case) -> Expected:
    table = Expected(policy)
    if policy != "exception":
        for step in case.steps:
            table.follow(step)
    return table


def _table(columns: Mapping[str, pa.DataType], key: Sequence[str] = ("id",)) -> Table:
    return replace(BEFORE, columns=columns, key=key)


def _case(name: str, statement: str, after: Table, event: Event, steps: Sequence[Step], row: Row) -> Case:
    """A change, then the first row changed and another one inserted, with this row's values beside their keys."""
    changed, new = {**ROWS[0], **row}, {**row, "id": 3}
    own = {name: changed.get(name) for name in after.columns}
    put = {name: new.get(name) for name in after.columns}
    event = replace(event, statement=statement)
    rows = (after, [update({name: ROWS[0].get(name) for name in after.columns}, own), insert(**put)])
    return Case(name, statement, [[event, rows]], [*steps, Put([own, put])])


ADDED = _table({**BEFORE.columns, "c": pa.int32()})
DROPPED = _table({"id": pa.int32(), "n": pa.int32()})
RENAMED = _table({"id": pa.int32(), "b": pa.string(), "n": pa.int32()})
REORDERED = _table({"n": pa.int32(), "id": pa.int32(), "a": pa.string()})
WIDER = _table({"id": pa.int32(), "a": pa.string(), "n": NUMBER})
NARROWER = _table({"id": pa.int32(), "a": pa.string(), "n": pa.int16()})
OTHERS = _table({"id": pa.int32(), "a": pa.string(), "n": OTHER})
KEYED = _table(BEFORE.columns, ("id", "n"))
AGAIN = _table({"id": pa.int32(), "n": pa.int32(), "a": pa.int64()})
SAME_AGAIN = _table({"id": pa.int32(), "n": pa.int32(), "a": pa.string()})
RECREATED = _table({"id": pa.int32(), "z": pa.string()})

_FIRST_AGAIN = [[replace(altered(DROPPED), statement="DROP COLUMN a"), (DROPPED, [insert(id=4, n=40)])]]


def _again(name: str, statement: str, after: Table, default: object, step: Sequence[Step], row: Row) -> Case:
    second = _case(name, statement, after, altered(after, added={"a": default}), step, row)
    return replace(
        second,
        batches=[*_FIRST_AGAIN, *second.batches],
        steps=[Drop("a"), Put([{"id": 4, "n": 40}]), *second.steps],
    )


CASES = (
    _case(
        "add",
        "ADD COLUMN c INT DEFAULT 5",
        ADDED,
        altered(ADDED, added={"c": 5}),
        [Add("c", 5)],
        {"a": "z", "n": 30, "c": 6},
    ),
    _case("drop", "DROP COLUMN a", DROPPED, altered(DROPPED), [Drop("a")], {"n": 30}),
    _case(
        "rename",
        "RENAME COLUMN a TO b",
        RENAMED,
        altered(RENAMED, renamed={"b": "a"}),
        [Rename("a", "b")],
        {"b": "z", "n": 30},
    ),
    _case("reorder", "MODIFY COLUMN n INT FIRST", REORDERED, altered(REORDERED), [], {"a": "z", "n": 30}),
    _case(
        "widen",
        "MODIFY COLUMN n BIGINT UNSIGNED",
        WIDER,
        altered(WIDER),
        [Retype("n", widens=True)],
        {"a": "z", "n": 1 << 63},
    ),
    _case(
        "narrow", "MODIFY COLUMN n SMALLINT", NARROWER, altered(NARROWER), [Retype("n", fits=True)], {"a": "z", "n": 30}
    ),
    _case("another type", "MODIFY COLUMN n DOUBLE", OTHERS, altered(OTHERS), [Retype("n")], {"a": "z", "n": 0.5}),
    _again("add again", "ADD COLUMN a TEXT DEFAULT 'd'", SAME_AGAIN, "d", [Add("a", "d")], {"a": "z", "n": 30}),
    _case("another key", "DROP PRIMARY KEY, ADD PRIMARY KEY (id, n)", KEYED, altered(KEYED), [], {"a": "z", "n": 10}),
    _case(
        "swap",
        "RENAME TABLE t TO _t_old, _t_new TO t",
        ADDED,
        altered(ADDED, added={"c": None}, kind="SWAPPED"),
        [Add("c", None)],
        {"a": "z", "n": 30, "c": 6},
    ),
    _case("truncate", "TRUNCATE t", BEFORE, truncate(BEFORE), [Remove("TRUNCATED")], {"a": "z", "n": 30}),
    Case(
        "drop table", "DROP TABLE t", [[Event(BEFORE, "DROPPED", True, statement="DROP TABLE t")]], [Remove("DROPPED")]
    ),
    Case(
        "rename table",
        "RENAME TABLE t TO u",
        [[Event(BEFORE, "RENAMED", True, statement="RENAME TABLE t TO u")]],
        [Remove("RENAMED")],
    ),
)


@dataclass(frozen=True)
class Lake:
    """What the sink has made of a case."""

    rows: Sequence[Row]
    departure: Departure
    outcomes: Sequence[Outcome]


def applied(case: Case, policy: SchemaPolicy, folder: Path, *, apart: bool) -> Lake:
    """The case through the sink: a batch for each cut, or one for all."""
    writer, lake = Writer(folder / "landing"), folder / "lake"
    rules = SchemaRules.parse([str(policy)])
    outcomes: list[Outcome] = []
    writer.cut((BEFORE, [insert(**row) for row in ROWS]))
    outcomes += apply_entries(writer.folder, lake, schema_changes=rules)
    for batches in case.batches:
        writer.cut(*batches)
        if apart:
            outcomes += apply_entries(writer.folder, lake, first=writer.entry, schema_changes=rules)
    outcomes += apply_entries(writer.folder, lake, schema_changes=rules)
    current = open_table(f"{table_id(BEFORE).folder(str(lake))}/current")
    assert current is not None
    rows = current_state(str(lake), table_id(BEFORE)).to_pylist()
    plain = [{name: value for name, value in row.items() if name not in OWN} for row in rows]
    return Lake(sorted(plain, key=lambda row: int(str(row["id"]))), read_departure(current), outcomes)


def document() -> str:
    """Of all cases, as the sink does them."""
    lines = [
        "# What the lake does with changes of the schema",
        "",
        "Written by `python -m tests.spark_sink.schema_policy_cases` from what the sink does; tests compare each line.",
        "A table `t (id INT PRIMARY KEY, a TEXT, n INT)` has the rows (1, x, 10) and (2, y, 20). Then comes the",
        "statement, and behind it a change of row 1 and a new row 3. The policy `try_evolve` does what `evolve` does",
        "as long as the change can be applied, and what `ignore` does with it otherwise. The changelog has all columns",
        "and rows under each policy.",
        "",
    ]
    for case in CASES:
        lines += [
            f"## {case.name}: `{case.statement}`",
            "",
            "| policy | the current state's rows | it says |",
            "|---|---|---|",
        ]
        for policy in SchemaPolicy:
            with tempfile.TemporaryDirectory() as folder:
                found = applied(case, policy, Path(folder), apart=False)
            lines.append(line(policy, found))
        lines.append("")
    return "\n".join(lines)


def line(policy: SchemaPolicy, found: Lake) -> str:
    """Of the document."""
    rows = "<br>".join(_shown(row) for row in found.rows) or "none"
    stops = "stops the table before the change" if found.outcomes[-1].code else "nothing"
    return f"| `{policy}` | {rows} | {found.departure.words or stops} |"


def _shown(row: Row) -> str:
    return ", ".join(f"{name}={'NULL' if value is None else value}" for name, value in row.items())


if __name__ == "__main__":
    DOCUMENT.write_text(document())
