"""Dumps beside a plain model of the source: chunks at any floor, published late, among changes, kills and replays."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_sink.lake import changelog as changelog_module
from spark_sink.lake import chunk_merge, delta_table, merge, tail
from spark_sink.lake.table_options import OptionRules
from spark_sink.reading import changelog, current_state
from tests.spark_sink.landing import (
    Change,
    Chunk,
    Event,
    Table,
    Writer,
    altered,
    delete,
    insert,
    table_id,
    truncate,
    update,
)
from tests.spark_sink.test_model import Run

KEYS = 12
RANGES = ((0, 5), (5, 7), (7, KEYS))
KILLED = (
    (merge, "merge_effect"),
    (tail, "merge_effect"),
    (merge, "merge_chunks"),
    (merge, "remove_below"),
    (chunk_merge, "append"),
    (chunk_merge, "merge_effect"),
    (changelog_module, "append"),
    (delta_table, "write_deltalake"),
)
WEIGHTS = {"insert": 12, "update": 14, "move": 3, "delete": 4, "cut": 8, "apply": 3, "kill": 4, "replay": 1} | {
    "read": 18, "publish": 14, "lose": 0.5, "start": 8, "end": 8, "truncate": 0.3, "add": 0.5, "gap": 6, "retype": 0.7
}  # fmt: skip
STEPS = 300


@dataclass
class Row:
    values: dict[str, object]
    #: whether the log alone may not say all of it, and a chunk need not show it
    may_be_unknown: bool = False

    @property
    def key(self) -> int:
        return int(str(self.values["id"]))


@dataclass
class Source:
    """A table that had rows before its log began, and its dump."""

    run: Run
    images: str
    columns: dict[str, pa.DataType] = field(
        default_factory=lambda: {"id": pa.int32(), "a": pa.string(), "b": pa.int32()}
    )
    rows: list[Row] = field(default_factory=list)
    #: keys with a change that the log has
    touched: set[int] = field(default_factory=set)
    #: of cuts that a chunk may name
    floors: list[int] = field(default_factory=list)
    started_gsn: int | None = None
    #: of each range the first key that no chunk brought
    done: list[int] = field(default_factory=list)
    #: read and not published: range, first key after it, chunk
    hand: list[tuple[int, int, Chunk]] = field(default_factory=list)
    #: rows of published chunks
    dumped_rows: int = 0
    #: whether the lake has to equal it
    is_complete: bool = False
    #: the start of the first dump after the last gap: rows with this number or a higher one are true
    true_from: int | None = None
    dumps: int = 0

    @property
    def is_keyed(self) -> bool:
        return self.images != "keyless"

    @property
    def table(self) -> Table:
        return Table("t", self.columns, key=("id",) if self.is_keyed else ())

    def value(self, name: str, chosen: int) -> object:
        return None if chosen % 5 == 0 else f"{name}{chosen}" if name == "a" else self.number(name, chosen)

    def number(self, name: str, chosen: int) -> float:
        return chosen / 2 if pa.types.is_floating(self.columns[name]) else chosen

    def find(self, key: int) -> Row | None:
        return next((row for row in self.rows if row.key == key), None)

    def log(self, *changes: list[Change]) -> None:
        self.run.log(self.table, list(changes))

    def insert(self, key: int, chosen: int, mask: int) -> None:
        if self.is_keyed and self.find(key):
            return
        row = Row({name: key if name == "id" else self.value(name, chosen) for name in self.columns})
        absent = tuple(name for name in ("a",) if self.images == "partial" and mask % 7 == 0)
        row.may_be_unknown = bool(absent)
        self.rows.append(row)
        self.log(insert(**image(row.values, absent)))
        self.touched.add(key)

    def pick(self, chosen: int) -> Row | None:
        return self.rows[chosen % len(self.rows)] if self.rows else None

    def update(self, row: Row | None, new_key: int | None, chosen: int, mask: int) -> None:
        if row is None:
            return
        key = row.key
        to = key if new_key is None else new_key
        if to != key and self.find(to):
            return
        before = dict(row.values)
        changed = [name for place, name in enumerate(self.columns) if name != "id" and mask >> place & 1]
        row.values = before | {name: self.value(name, chosen) for name in changed} | {"id": to}
        is_partial = self.images == "partial" and chosen % 4 != 0
        absent = tuple(name for name in self.columns if name not in ("id", *changed)) if is_partial else ()
        owed = tuple(name for name in self.columns if name != "id") if is_partial else ()
        row.may_be_unknown |= is_partial and to != key
        self.log(update(image(before, owed), image(row.values, absent)))
        self.touched |= {key, to}

    def delete(self, row: Row | None, mask: int) -> None:
        if row is not None:
            self.rows.remove(row)
            is_partial = self.images == "partial" and mask % 2 == 0
            self.log(delete(**image(row.values, tuple(name for name in self.columns if name != "id" and is_partial))))
            self.touched.add(row.key)

    def gap(self, seed: int) -> None:
        """Changes that the log does not have."""
        if self.started_gsn is not None:
            return
        self.true_from, self.is_complete = None, False
        self.touched.clear()
        for key in range(KEYS):
            row = self.find(key)
            if row is not None and (seed + key) % 3 == 0:
                self.rows.remove(row)
            elif row is not None:
                row.values = row.values | {"a": f"gap{seed}", "b": self.number("b", seed)}
            elif (seed + key) % 2:
                self.rows.append(Row({name: key if name == "id" else self.value(name, seed) for name in self.columns}))

    def end_cut(self) -> None:
        self.run.end_cut()
        key = ("acme", "shop")
        if self.started_gsn is not None and self.run.writer.last_gsns.get(key, 0) >= self.started_gsn:
            self.floors.append(self.run.writer.last_gsns[key])

    def start(self) -> None:
        if self.started_gsn is None:
            self.dumps += 1
            self.end_cut()
            self.run.batches.append(Event(self.table, "DUMP_STARTED", dump=self.dump))
            self.done, self.hand, self.floors = [low for low, _ in RANGES], [], []
            self.started_gsn = self.run.writer.last_gsns.get(("acme", "shop"), 0) + 1
            self.true_from = self.true_from or self.started_gsn
            for row in self.rows:
                row.may_be_unknown = False
            self.end_cut()

    @property
    def dump(self) -> str:
        return f"dump-{self.dumps}"

    def read(self, chosen: int, size: int, floor: int) -> None:
        """What a range holds now, at any floor before."""
        if self.started_gsn is None or not self.floors or not self.is_keyed:
            return
        number = chosen % len(RANGES)
        low = max([self.done[number], *(upper for of, upper, _ in self.hand if of == number)])
        upper = min(low + size % 3 + 1, RANGES[number][1])
        if low < upper:
            rows = [dict(row.values) for row in self.rows if low <= row.key < upper]
            gsn = self.floors[-1 - floor % min(4, len(self.floors))]
            self.hand.append((number, upper, Chunk(self.table, rows, gsn, number, self.dump)))

    def publish(self, count: int) -> None:
        for number, upper, chunk in self.hand[: count % 3 + 1]:
            self.run.batches.append(chunk)
            self.dumped_rows += len(chunk.rows)
            self.done[number] = upper
        del self.hand[: count % 3 + 1]

    def end(self, checks: bool = False) -> None:
        if self.started_gsn is None:
            return
        if self.is_keyed:
            if self.hand or any(done < high for done, (_, high) in zip(self.done, RANGES, strict=True)):
                return
            ended = Event(self.table, "DUMPED", removes_rows_before_gsn=self.started_gsn, dump=self.dump)
            self.run.batches.append(ended)
        else:
            self.run.batches.append(Event(self.table, "DUMPED", removes_rows=True, dump=self.dump))
            self.run.batches.append(Chunk(self.table, [dict(row.values) for row in self.rows], dump=self.dump))
            self.dumped_rows += len(self.rows)
        self.started_gsn, self.is_complete = None, True
        if checks:
            self.end_cut()
            self.run.catch_up()
            check(self)

    def change_definition(self, event: Event) -> None:
        """Chunks from before it are thrown away, unless an earlier cut has named them."""
        if any(isinstance(batch, Chunk) for batch in self.run.batches):
            self.end_cut()
        self.run.batches.append(event)
        self.hand, self.floors = [], []

    def truncate(self) -> None:
        self.rows.clear()
        self.change_definition(truncate(self.table))

    def add(self) -> None:
        name = f"c{len(self.columns)}"
        self.columns = {**self.columns, name: pa.int32()}
        for row in self.rows:
            row.values[name] = 7
        self.change_definition(altered(self.table, added={name: 7}))

    def retype(self) -> None:
        """To what the lake's column can't hold."""
        self.columns = self.columns | {"b": pa.int32() if pa.types.is_floating(self.columns["b"]) else pa.float64()}
        for place, row in enumerate(self.rows):
            row.values["b"], row.may_be_unknown = self.number("b", place), True
        self.is_complete &= self.is_keyed
        self.change_definition(altered(self.table))

    def finish(self) -> None:
        if not self.is_complete:
            self.start()
        while self.started_gsn is not None:
            self.end_cut()
            for number in range(len(RANGES)):
                self.read(number, 2, 0)
            self.run.batches.append(altered(self.table)) if not self.floors else None
            self.publish(2)
            self.end()
        self.end_cut()


def image(values: dict[str, object], absent: tuple[str, ...]) -> dict[str, object]:
    logged = {name: None if name in absent else value for name, value in values.items()}
    return {**logged, "_absent": absent} if absent else logged


def play(source: Source, kind: str, one: int, two: int, three: int) -> None:
    run = source.run
    if kind in ("apply", "kill", "replay"):
        source.end_cut()
        actions: dict[str, Callable[[], None]] = {
            "apply": run.catch_up,
            "kill": lambda: run.kill(one, two, three, KILLED),
            "replay": lambda: run.replay(one, two),
        }
        actions[kind]()
        if run.applied == run.writer.entry:
            check(source)
        return
    {
        "insert": lambda: source.insert(one % KEYS, two, three),
        "update": lambda: source.update(source.pick(one), None, two, three),
        "move": lambda: source.update(source.pick(one), two % KEYS, two, three),
        "delete": lambda: source.delete(source.pick(one), two),
        "cut": source.end_cut,
        "read": lambda: source.read(one, two, three),
        "publish": lambda: source.publish(one),
        "lose": source.hand.clear,
        "start": source.start,
        "end": lambda: source.end(checks=one % 2 == 0),
        "truncate": source.truncate,
        "add": source.add,
        "retype": source.retype,
        "gap": lambda: source.gap(one),
    }[kind]()


def check(source: Source) -> None:
    if not source.run.applied:
        return
    lake = current_state(str(source.run.lake), table_id(source.table)).to_pylist()
    if not source.is_keyed and source.is_complete:
        found = Counter(repr([row[name] for name in source.columns]) for row in lake)
        assert found == Counter(repr([row.values[name] for name in source.columns]) for row in source.rows)
    if source.is_keyed:
        keys = {row["id"] for row in lake}
        held = {row.values["id"] for row in source.rows}
        assert keys & source.touched == held & source.touched
        assert len(keys) == len(lake)
        whole = current_state(str(source.run.lake), table_id(source.table), with_deleted=True)["id"].to_pylist()
        assert len(whole) == len(set(whole))
        assert keys == held or not source.is_complete
        check_values(source, lake)
    log = changelog(str(source.run.lake), table_id(source.table))
    counts = Counter(log["_change_type"].to_pylist())
    assert counts.pop("snapshot", 0) == source.dumped_rows
    counts.pop("truncate", 0)
    assert counts.total() == source.run.changes
    numbers = log.filter(pc.greater(log["_transaction_id"], 0))["_gsn"].to_pylist()
    assert len(numbers) == len(set(numbers))


def check_values(source: Source, lake: list[dict[str, object]]) -> None:
    """What is not named as unknown is true in each row that a change or a chunk brought since the dump began; when it
    is complete, only what neither the log nor a chunk could say is unknown.
    """
    is_dumped = source.is_complete and source.started_gsn is None
    for found in lake:
        gsn = int(str(found["_gsn"]))
        if source.true_from is None or gsn < source.true_from:
            assert not source.is_complete
            continue
        row = source.find(int(str(found["id"])))
        assert row is not None
        unknown = str(found["_absent"] or "[]")
        assert row.may_be_unknown or unknown == "[]" or not is_dumped
        for name, value in row.values.items():
            assert f'"{name}"' in unknown or found[name] == value, name


@pytest.fixture(scope="module", autouse=True)
def small_pieces() -> Iterator[None]:
    """So that a chunk is merged in several, and compacted files hold chunks and changes."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chunk_merge, "PIECE_ROWS", 2)
        patched.setattr(delta_table, "COMPACT_EVERY_VERSIONS", 7)
        yield


@pytest.mark.long
@pytest.mark.parametrize(
    ("images", "seed", "options"),
    [
        *((images, seed, "none") for seed in range(4) for images in ("whole", "partial", "keyless")),
        *((images, 4, "soft_delete,commit_time") for images in ("whole", "partial")),
    ],
)
def test_dumps_among_random_changes_when_the_sink_is_killed_and_replayed_then_the_lake_equals_the_source(
    tmp_path: Path, images: str, seed: int, options: str
) -> None:
    chosen = random.Random(f"{images} {seed}")
    rules = OptionRules.parse([options])
    run = Run(Writer(tmp_path / "landing", row_group_rows=2), tmp_path / "lake", options=rules)
    source = Source(run, images)
    source.gap(seed)
    run.batches.append(altered(source.table))
    source.start()
    for kind in chosen.choices(list(WEIGHTS), list(WEIGHTS.values()), k=STEPS):
        play(source, kind, *(chosen.randrange(32) for _ in range(3)))
    source.finish()
    run.catch_up()
    check(source)
