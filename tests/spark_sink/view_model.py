"""Random views over random tables: the sink's parts follow changes without Spark, and models say what is right.

A world has three tables in two sources and a few views on them. Each step changes some of the tables: rows come, go and
change, join keys move and become null, tables are emptied. What a view must hold is its text run over the models.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import duckdb
import pyarrow as pa
from menura.change_batch import CHANGE_TYPE, GSN
from menura.views.definition import ViewDefinition

from spark_sink.ingest.cut_log_source import entry_rows
from spark_sink.ingest.divided_views import In, Out, Tasks, run_views
from spark_sink.ingest.view_task import ViewOutcome, ViewSettings
from spark_sink.ingest.views import Views
from spark_sink.lake.records import Records
from spark_sink.lake.retention import KEEP_HOURS
from spark_sink.lake.table_folders import told_folders
from spark_sink.lake.tail import AT_ONCE, Waiting
from spark_sink.landed.lake_schema import lake_type
from spark_sink.landed.landing_log import LandingLog
from spark_sink.reading import changelog, current_state
from spark_sink.views.division import ALONE, Dividing
from spark_sink.views.maintain import ViewWork, view_table_id
from spark_sink.views.store_folders import StoreSettings
from spark_sink.work import CutSeen, EventSeen, split_rows
from tests.spark_sink.landing import Change, Table, Values, Writer, apply_entries, delete, insert, truncate, update

ORDERS = Table(
    "orders",
    {
        "id": pa.int32(),
        "person": pa.int32(),
        "qty": pa.int32(),
        "total": pa.decimal128(10, 2),
        "note": pa.string(),
        "day": pa.date32(),
    },
    database="app",
)
PEOPLE = Table("people", {"id": pa.int32(), "name": pa.string(), "country": pa.string()}, database="app")
COUNTRIES = Table("countries", {"code": pa.string(), "title": pa.string()}, key=("code",), database="app")
SOURCES = {"orders": "shop", "people": "crm", "countries": "crm"}
TABLES = {table.name: table for table in (ORDERS, PEOPLE, COUNTRIES)}
Named = Callable[[str], str]


class Text(Protocol):
    """A view's text, of its tables' names; `by` a column that all tables have, for each of whose values it is run."""

    def __call__(self, named: Named, by: str = "") -> str: ...


def in_lake(name: str) -> str:
    return f"{SOURCES[name]}.app.{name}" if name in SOURCES else name


def one_by_one(task: Callable[[Iterable[In]], Iterator[Out]], values: Sequence[In]) -> list[Out]:
    """One after the other, in this process."""
    return [found for value in values for found in task([value])]


def sink_of(
    folder: Path,
    waiting: Waiting,
    views: Mapping[str, Text],
    *,
    tasks: Tasks = one_by_one,
    stores: bool,
    dividing: Dividing = ALONE,
) -> Views:
    """As after a start, of a world's folder."""
    lake = str(folder / "lake")
    of_stores = StoreSettings(str(folder / "stores"), least_rows=0) if stores else None
    settings = ViewSettings(lake, waiting, KEEP_HOURS, stores=of_stores, dividing=dividing)

    def run(works: Sequence[ViewWork]) -> list[ViewOutcome]:
        with told_folders(settings.lake, {}):  # as each task of a sink is
            return run_views(settings, tasks, works)

    sink = Views(lake, Records(lake), run, nullcontext())
    sink.want([ViewDefinition("acme", name, text(in_lake)) for name, text in views.items()])
    return sink


@dataclass
class World:
    folder: Path
    seed: int
    waiting: Waiting = AT_ONCE
    #: in stores, of tables of any size
    stores: bool = True
    dividing: Dividing = ALONE
    rows: dict[str, dict[object, Values]] = field(default_factory=lambda: {name: {} for name in TABLES})
    views: dict[str, Callable[[Named], str]] = field(default_factory=dict)
    followed: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.lake = self.folder / "lake"
        self.lake.mkdir(parents=True, exist_ok=True)
        self.writer = Writer(self.folder / "landing")
        self.sink = self.new_sink()

    def new_sink(self) -> Views:
        """As after a start."""
        return sink_of(
            self.folder, self.waiting, self.views, tasks=self.tasks, stores=self.stores, dividing=self.dividing
        )

    def tasks(self, task: Callable[[Iterable[In]], Iterator[Out]], values: Sequence[In]) -> list[Out]:
        return one_by_one(task, values)

    def want(self, **views: Callable[[Named], str]) -> None:
        self.views = views
        self.sink.want([ViewDefinition("acme", name, text(in_lake)) for name, text in views.items()])

    def land(self, changes: int = 12, *, empties: bool = True) -> None:
        """A cut of each source."""
        for source in ("shop", "crm"):
            batches: list[object] = []
            for name in (name for name, of in SOURCES.items() if of == source):
                if empties and self.followed and self.rows[name] and self.random.random() < 0.04:
                    batches.append(truncate(TABLES[name]))
                    self.rows[name].clear()
                least = 0 if self.followed else 8
                found = [self._change(name) for _ in range(max(least, self.random.randrange(changes)))]
                batches.append((TABLES[name], found))
            self.writer.cut(*[each for each in batches if not isinstance(each, tuple) or each[1]], source=source)  # type: ignore[arg-type]

    def apply(self) -> None:
        """Bring the tables to the log's end, as one batch."""
        log = LandingLog(str(self.writer.folder))
        first, last = self.followed + 1, log.last_entry(self.followed)
        known, _ = split_rows([row for n in range(first, last + 1) for row in entry_rows(log.read_entry(n))])
        outcomes = apply_entries(self.writer.folder, self.lake, first=first, last=last, waiting=self.waiting)
        assert all(outcome.result in ("applied", "skipped") for outcome in outcomes), outcomes
        records = Records(str(self.lake))
        records.record_events([each for each in known if isinstance(each, EventSeen)])
        records.record_batch([each for each in known if isinstance(each, CutSeen)], outcomes, whole=True)
        self.followed = last

    def step(self, changes: int = 12) -> None:
        self.land(changes)
        self.apply()
        self.sink.turn()

    def _change(self, name: str) -> list[Change]:
        rows, choose = self.rows[name], self.random
        new = {"orders": self._order, "people": self._person, "countries": self._country}[name]()
        key = TABLES[name].key[0]
        if rows and choose.random() < 0.3:
            gone = choose.choice(sorted(rows, key=repr))
            return delete(**rows.pop(gone))
        if new[key] not in rows:
            if rows and choose.random() < 0.15:  # the key moves
                old = rows.pop(choose.choice(sorted(rows, key=repr)))
                rows[new[key]] = new
                return update(old, new)
            rows[new[key]] = new
            return insert(**new)
        old, rows[new[key]] = rows[new[key]], new
        return update(old, new)

    def _order(self) -> dict[str, object]:
        choose = self.random
        return {
            "id": choose.randrange(40),
            "person": choose.choice([None, *range(12)]),
            "qty": choose.choice([None, 0, 1, 2, 3, -5]),
            "total": choose.choice([None, Decimal("0.50"), Decimal("12.25"), Decimal("-3.00")]),
            "note": choose.choice([None, "", "a", "B", "ä"]),
            "day": choose.choice([None, date(2024, 2, 28) + timedelta(choose.randrange(4))]),
        }

    def _person(self) -> dict[str, object]:
        choose = self.random
        return {
            "id": choose.randrange(12),
            "name": choose.choice([None, "ann", "bo"]),
            "country": choose.choice([None, "de", "fr", "it"]),
        }

    def _country(self) -> dict[str, object]:
        return {"code": self.random.choice(["de", "fr", "it", "no"]), "title": self.random.choice([None, "X", "Y"])}

    def tables(self) -> dict[str, pa.Table]:
        """The models, as the lake's tables."""
        found = {}
        for name, table in TABLES.items():
            schema = pa.schema([pa.field(column, lake_type(type_)) for column, type_ in table.columns.items()])
            found[name] = pa.Table.from_pylist(list(self.rows[name].values()), schema=schema)
        return found

    def expected(self) -> dict[str, list[tuple[object, ...]]]:
        """What each view must hold, by the engine's own reading of its text."""
        connection = duckdb.connect()
        for name, rows in self.tables().items():
            connection.register(name, rows)
        found = {}
        for name, text in self.views.items():
            rows = connection.sql(_AVERAGE.sub(_ROUNDED, text(lambda table: table))).to_arrow_table()
            connection.register(name, rows)
            found[name] = sorted(map(values, rows.to_pylist()), key=repr)
        connection.close()
        return found

    def held(self, name: str) -> list[tuple[object, ...]]:
        return held_rows(str(self.lake), name)

    def replayed(self, name: str) -> list[tuple[object, ...]]:
        """The view's changelog from its beginning."""
        rows = changelog(str(self.lake), view_table_id("acme", name)).to_pylist()
        held: Counter[tuple[object, ...]] = Counter()
        order = {"truncate": 0, "delete": 1, "update_preimage": 1, "insert": 2, "update_postimage": 2}
        for row in sorted(rows, key=lambda row: (row[GSN], order[row[CHANGE_TYPE]])):
            kind = row[CHANGE_TYPE]
            if kind == "truncate":
                held.clear()
                continue
            own = values({column: value for column, value in row.items() if not column.startswith("_")})
            held[own] += 1 if order[kind] == 2 else -1
        assert all(count in (0, 1) for count in held.values()), held
        return sorted(held.elements(), key=repr)

    def check(self) -> None:
        assert [state for state in self.sink.states() if state.state != "following"] == []
        for name, rows in self.expected().items():
            assert self.held(name) == rows, (name, self.views[name](in_lake))
            assert self.replayed(name) == rows, name


def held_rows(lake: str, name: str) -> list[tuple[object, ...]]:
    """Of a view, without the sink's own columns."""
    rows = current_state(lake, view_table_id("acme", name)).drop_columns(["_unrepresentable", "_gsn"])
    return sorted(
        map(values, rows.drop_columns([each for each in rows.column_names if each == "_absent"]).to_pylist()),
        key=repr,
    )


#: of decimals the engine makes a float, which for these few small numbers rounds as Spark does
_AVERAGE = re.compile(r"avg\((o\.total)\)")
_ROUNDED = r"CAST(round(CAST(sum(\1) AS DOUBLE) / count(\1), 6) AS DECIMAL(14,6))"


def values(row: dict[str, object]) -> tuple[object, ...]:
    return tuple(row.values())


def generated(choose: random.Random) -> Text:
    tables = choose.choice(
        [["orders"], ["orders", "people"], ["orders", "people", "countries"], ["people", "countries"]]
    )
    alias = {"orders": "o", "people": "p", "countries": "c"}
    joins = {
        "people": "p.id = o.person" + choose.choice(["", " AND p.name IS NOT NULL", " AND o.qty > 0"]),
        "countries": "c.code = p.country" + choose.choice(["", " AND c.title <> 'X'"]),
    }
    kinds = {name: choose.choice(["JOIN", "LEFT JOIN"]) for name in tables[1:]}
    many = "CASE WHEN o.qty > 1 THEN 'many' WHEN o.qty IS NULL THEN 'none' ELSE 'few' END"
    orders = [
        "o.person",
        "o.qty",
        "o.total",
        "o.note",
        "o.day",
        "o.qty * 2",
        "coalesce(o.note, '-')",
        many,
        "o.qty > 0",
    ]
    offered = {
        "orders": [*orders, "o.total * o.qty"],
        "people": ["p.name", "p.country", "length(p.name)", "p.name || '!'"],
        "countries": ["c.title", "c.code", "c.title IS NULL"],
    }
    columns = [each for name in tables for each in offered[name]]
    conditions = {
        "orders": ["o.qty > 0", "o.note IN ('a', 'B')", "o.day >= DATE '2024-02-29'", "o.total BETWEEN 0 AND 20"],
        "people": ["p.country = 'de'", "p.name IS NULL", "NOT p.name = 'bo'"],
        "countries": ["c.title = 'X'", "c.title IS NULL"],
    }
    found = [each for name in tables for each in conditions[name]]
    where = choose.choice(["", *found, f"{choose.choice(found)} {choose.choice(['AND', 'OR'])} {choose.choice(found)}"])
    if choose.random() < 0.5:
        groups = choose.sample(columns, choose.randrange(1, 3))
        first = alias[tables[0]]
        numbers = ["o.qty", "o.qty * 2"] if "orders" in tables else ["p.id"]
        sums = [*numbers, "o.total"] if "orders" in tables else numbers
        largest = choose.choice([*columns, f"{first}.id"])
        offers = ["count(*)", f"count({choose.choice(columns)})", f"sum({choose.choice(sums)})"]
        offers += [f"avg({choose.choice(sums)})", f"min({choose.choice(columns)})", f"max({largest})"]
        chosen = [f"{each} AS g{place}" for place, each in enumerate(groups)]
        chosen += [f"{each} AS a{place}" for place, each in enumerate(choose.sample(offers, choose.randrange(1, 5)))]
        grouped = f" GROUP BY {', '.join(groups)}"
    else:
        chosen = [
            f"{alias[tables[0]]}.id",
            *(f"{each} AS x{place}" for place, each in enumerate(choose.sample(columns, 3))),
        ]
        grouped = ""

    def text(named: Named, by: str = "") -> str:
        joined = ""
        for above, name in pairwise(tables):
            same = f" AND {alias[name]}.{by} = {alias[above]}.{by}" if by else ""
            joined += f" {kinds[name]} {named(name)} {alias[name]} ON {joins[name]}{same}"
        first = alias[tables[0]]
        each = f"{first}.{by}, " if by else ""
        groups = f"{grouped}, {first}.{by}" if by and grouped else grouped
        return (
            f"SELECT {each}{', '.join(chosen)} FROM {named(tables[0])} {first}{joined}"
            f"{' WHERE ' + where if where else ''}{groups}"
        )

    return text


def texts(seed: int, count: int) -> dict[str, Text]:
    choose = random.Random(seed)
    return {f"v{place}": generated(choose) for place in range(count)}
