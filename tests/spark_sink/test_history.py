"""Every version of a table's rows, beside a replay of what was written into the log."""

import random
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from menura.landing import KeyNumbers, LandedRepair
from pyspark.sql import SparkSession

from spark_sink.errors import HistoryImpossible
from spark_sink.history import IS_CURRENT, VALID_FROM, VALID_TO, VALID_TO_GSN, create_history_view, history
from spark_sink.ingest.cut_log_source import entry_rows
from spark_sink.lake.records import Records
from spark_sink.landed.landing_log import LandingLog
from spark_sink.reading import current_state
from spark_sink.work import EventSeen, split_rows
from tests.spark_sink.landing import (
    Batch,
    Change,
    Chunk,
    Event,
    Table,
    Writer,
    apply_entries,
    insert,
    table_id,
    truncate,
)

#: names of the source that the statement must not take for its own
TABLE = Table("t", {"id": pa.int32(), "valid_to": pa.string(), "changes": pa.int32()})
KEYS = 8

Values = dict[str, object]


@dataclass
class Log:
    """A table's log while it is written, and what it says of each number."""

    writer: Writer
    chosen: random.Random
    rows: dict[int, Values] = field(default_factory=dict)
    #: number, order within it, what it is, of which key, with which values or from which number on
    said: list[tuple[int, int, str, int, object]] = field(default_factory=list)

    @property
    def next_gsn(self) -> int:
        return self.writer.last_gsns.get(("acme", "shop"), 0) + 1

    def cut(self, *batches: Batch) -> None:
        self.writer.cut(*batches)

    def value(self, key: int) -> Values:
        return {"id": key, "valid_to": self.chosen.choice(["a", "b", None]), "changes": self.chosen.randrange(3)}

    def change(self) -> None:
        changes: list[list[Change]] = []
        gsn = self.next_gsn
        for _ in range(self.chosen.randrange(1, 6)):
            key = self.chosen.randrange(KEYS)
            held = self.rows.pop(key, None)
            if held is None:
                self.rows[key] = self.value(key)
                changes.append([("insert", self.rows[key])])
                self.said.append((gsn, 1, "put", key, self.rows[key]))
                gsn += 1
                continue
            self.said.append((gsn, 0, "take", key, None))
            gsn += 1
            if self.chosen.random() < 0.3:
                changes.append([("delete", held)])
                continue
            to = self.chosen.choice([key, *(set(range(KEYS)) - set(self.rows))])
            self.rows[to] = self.value(to)
            changes.append([("update_preimage", held), ("update_postimage", self.rows[to])])
            self.said.append((gsn, 1, "put", to, self.rows[to]))
            gsn += 1
        self.cut((TABLE, changes))

    def truncate(self) -> None:
        self.said.append((self.next_gsn, 0, "end", -1, self.next_gsn))
        self.rows.clear()
        self.cut(truncate(TABLE))

    def unlogged(self) -> None:
        for key in self.chosen.sample(range(KEYS), 3):
            if self.rows.pop(key, None) is None:
                self.rows[key] = self.value(key)

    def read(self, begins: str, first: int, gsn: int) -> list[Batch]:
        floor = self.next_gsn - 1
        seen = [row for key, row in self.rows.items() if key >= first]
        self.said += [(floor, 2, "read", int(str(row["id"])), row) for row in seen]
        return [Chunk(TABLE, [dict(row) for row in seen], floor, dump=f"d{gsn}", repairs=begins == "REPAIR_STARTED")]

    def dump(self) -> None:
        gsn = self.next_gsn
        self.unlogged()
        self.cut(Event(TABLE, "DUMP_STARTED", dump=f"d{gsn}"))
        chunks = self.read("DUMP_STARTED", 0, gsn)
        self.change()
        self.cut(*chunks)
        self.said.append((self.next_gsn, 0, "end", -1, gsn))
        self.cut(Event(TABLE, "DUMPED", dump=f"d{gsn}", removes_rows_before_gsn=gsn))

    def repair(self) -> None:
        gsn, first = self.next_gsn, KEYS // 2
        self.cut(Event(TABLE, "REPAIR_STARTED", dump=f"d{gsn}"))
        self.cut(*self.read("REPAIR_STARTED", first, gsn))
        self.said.append((self.next_gsn, 0, "end", first - 1, gsn))
        repaired = LandedRepair(gsn, ("id",), (KeyNumbers((first - 1,), ()),))
        self.cut(Event(TABLE, "REPAIRED", dump=f"d{gsn}", repaired=repaired))


def replayed(log: Log) -> set[tuple[object, ...]]:
    """Key, values, first number and end of each version."""
    found: set[tuple[object, ...]] = set()
    #: by key: values, first number, where they were seen last
    alive: dict[int, tuple[Values, int, int]] = {}

    def end(key: int, gsn: int | None) -> None:
        if key in alive:
            values, begin, _ = alive.pop(key)
            found.add((*values.values(), begin, gsn))

    for gsn, _, kind, key, what in sorted(log.said, key=lambda each: each[:2]):
        if kind == "end":
            assert isinstance(what, int)
            for gone in [held for held, (_, _, seen) in alive.items() if held > key and seen < what]:
                end(gone, gsn)
        elif kind == "take":
            end(key, gsn)
        else:
            assert isinstance(what, dict)
            if kind == "read" and key in alive and alive[key][0] == what:
                alive[key] = (what, alive[key][1], gsn)
                continue
            end(key, gsn)
            alive[key] = (what, gsn, gsn)
    for key in list(alive):
        end(key, None)
    return found


def follow(writer: Writer, lake: Path) -> None:
    """All that is in the log, with its events."""
    for outcome in apply_entries(writer.folder, lake):
        assert outcome.message == ""
    log = LandingLog(str(writer.folder))
    rows = [row for number in range(1, writer.entry + 1) for row in entry_rows(log.read_entry(number))]
    Records(str(lake)).record_events(each for each in split_rows(rows)[0] if isinstance(each, EventSeen))


def written(writer: Writer, lake: Path, seed: int) -> Log:
    log = Log(writer, random.Random(seed))
    log.change()
    for _ in range(25):
        getattr(log, log.chosen.choice(["change"] * 6 + ["truncate", "dump", "dump", "repair"]))()
    follow(writer, lake)
    return log


@pytest.mark.parametrize("seed", range(4))
def test_versions_when_rows_change_and_are_read_again_then_are_those_of_a_replay(
    writer: Writer, lake: Path, seed: int
) -> None:
    log = written(writer, lake, seed)
    found = history(str(lake), table_id(TABLE))
    rows = found.to_pylist()
    names = [*TABLE.columns, "_gsn", VALID_TO_GSN]
    assert {tuple(row[name] for name in names) for row in rows} == replayed(log)
    assert len(rows) == len(replayed(log))
    assert all(row[IS_CURRENT] == (row[VALID_TO] is None) == (row[VALID_TO_GSN] is None) for row in rows)
    assert all(row[VALID_TO] is None or row[VALID_FROM] is not None for row in rows)
    current = current_state(str(lake), table_id(TABLE)).select(list(TABLE.columns)).to_pylist()
    living = [{name: row[name] for name in TABLE.columns} for row in rows if row[IS_CURRENT]]
    assert sorted(map(repr, current)) == sorted(map(repr, living))


def test_versions_of_a_table_without_a_key_then_are_refused_with_what_to_read(writer: Writer, lake: Path) -> None:
    keyless = Table("k", TABLE.columns, key=())
    writer.cut((keyless, [insert(id=1)]))
    follow(writer, lake)
    with pytest.raises(HistoryImpossible, match="changelog"):
        history(str(lake), table_id(keyless))


@pytest.mark.spark
def test_versions_when_spark_reads_them_then_are_those_that_arrow_has(
    session: SparkSession, writer: Writer, lake: Path
) -> None:
    written(writer, lake, 1)
    create_history_view(session, str(lake), table_id(TABLE), "versions")
    names = ["id", "valid_to", "changes", "_gsn", VALID_TO_GSN, IS_CURRENT]
    found = [tuple(row[name] for name in names) for row in session.table("versions").collect()]
    assert found == [tuple(row[name] for name in names) for row in history(str(lake), table_id(TABLE)).to_pylist()]
    times = session.sql(f"SELECT sum(unix_micros({VALID_FROM})), sum(unix_micros({VALID_TO})) FROM versions").first()
    rows = history(str(lake), table_id(TABLE))
    assert times is not None
    assert list(times) == [pa.compute.sum(rows[name].cast(pa.int64())).as_py() for name in (VALID_FROM, VALID_TO)]
