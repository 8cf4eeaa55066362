"""A table that kills the Python worker at it, or makes its engine panic: it alone stops, others have their rows."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from menura.landing import LandedForeignKey
from pyspark.sql import Row, SparkSession

from spark_sink.ingest import batch_jobs, isolation, table_task
from spark_sink.ingest.cut_log_source import ROW_SCHEMA, entry_rows
from spark_sink.ingest.families import Families
from spark_sink.ingest.query import Sink
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.status import SinkStatus
from spark_sink.ingest.table_task import TaskSettings, TaskSize
from spark_sink.lake.delta_table import open_table, scan
from spark_sink.landed.landing_log import LandingLog
from spark_sink.reading import stopped_tables
from spark_sink.work import EventSeen, Message, Result, TableFile, TableId
from tests.remedies import commands
from tests.spark_sink.landing import Event, Table, Writer, apply_entries, delete, insert, lake_rows, table_id

pytestmark = pytest.mark.spark

POISON = Table("poison", {"id": pa.int32()})
CHILD = Table("child", {"id": pa.int32(), "parent": pa.int32()})
CASCADE = LandedForeignKey("fk", ("parent",), ("shop", "poison"), ("id",), "cascade", "cascade", (None,))
OTHERS = [Table(f"t{number}", {"id": pa.int32()}) for number in range(30)]


class Panic(BaseException):
    """As Rust's, whose class is made anew in each library."""


Panic.__module__ = "pyo3_runtime"


def poisonous(how: str, deaths: Path, most: int, settings: TaskSettings) -> Callable[[Iterable[Row]], Iterator[str]]:
    """`table_task`, in whose process one table kills it, `most` times; each time is a file."""
    task = table_task.table_task(settings)
    apply_work = table_task.apply_work

    def run(rows: Iterable[Row]) -> Iterator[str]:
        def work(log: object, lake: object, table: table_task.TableId, *others: object) -> object:
            if table.table == "poison" and len(list(deaths.iterdir())) < most:
                (deaths / str(os.getpid())).touch()
                if how == "panic":
                    raise Panic("assertion failed")
                os.kill(os.getpid(), signal.SIGKILL)
            return apply_work(log, lake, table, *others)

        table_task.apply_work = work  # this process's alone, and only while the task lasts
        try:
            yield from task(rows)
        finally:
            table_task.apply_work = apply_work

    return run


@pytest.fixture
def deaths(tmp_path: Path) -> Path:
    folder = tmp_path / "deaths"
    folder.mkdir()
    return folder


@pytest.fixture
def sink(session: SparkSession, writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch) -> Sink:
    monkeypatch.setattr(isolation, "PAUSE_SECONDS", 0.0)
    checkpoint = str(lake / "_menura/checkpoint")
    return Sink(session, SinkSettings(str(writer.folder), str(lake), checkpoint, available_now=True), SinkStatus())


def follow(sink: Sink) -> None:
    sink.start().awaitTermination()


def fill(writer: Writer, number: int) -> None:
    keys = Event(CHILD, "FOREIGN_KEYS", foreign_keys=(CASCADE,))
    writer.cut(
        *([keys] if number == 1 else []),
        *((table, [insert(id=number)]) for table in (*OTHERS, POISON)),
        (CHILD, [insert(id=number, parent=number)]),
    )


def check_others(lake: Path, *numbers: int) -> None:
    assert [lake_rows(lake, table) for table in OTHERS] == [[{"id": number} for number in numbers]] * len(OTHERS)


def test_table_when_it_kills_its_worker_then_it_alone_stops_until_it_is_retried(
    sink: Sink, writer: Writer, lake: Path, deaths: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_jobs, "table_task", partial(poisonous, "kill", deaths, 1000))
    fill(writer, 1)
    writer.cut(Event(POISON, "ALTERED"))
    fill(writer, 2)
    follow(sink)
    check_others(lake, 1, 2)
    stops = {stop.table: stop for stop in stopped_tables(str(lake))}
    assert {table.table: stop.code for table, stop in stops.items()} == {
        "poison": "WORKER_KILLED",
        "child": "PARENT_STOPPED",
    }
    killed = stops[table_id(POISON)]
    assert (killed.terminal, killed.entry, commands(killed.message)) == (
        True,
        1,
        [["sync", "retry", "shop", "shop.poison"]],
    )
    events = open_table(f"{lake}/_menura/events")
    assert events is not None
    assert [row["kind"] for row in scan(events, "SELECT * FROM t ORDER BY _gsn").read_all().to_pylist()] == [
        "FOREIGN_KEYS",
        "ALTERED",
    ]
    died = len(list(deaths.iterdir()))
    assert died >= isolation.ATTEMPTS
    fill(writer, 3)
    writer.cut((POISON, [delete(id=1)]))
    monkeypatch.setattr(batch_jobs, "table_task", table_task.table_task)
    sink.ask_retry([table_id(POISON)])
    sink.retry_due()
    assert stopped_tables(str(lake)) == []
    follow(sink)
    check_others(lake, 1, 2, 3)
    assert lake_rows(lake, POISON) == [{"id": 2}, {"id": 3}]
    assert [row["id"] for row in lake_rows(lake, CHILD)] == [2, 3]
    assert len(list(deaths.iterdir())) == died


def test_table_when_its_worker_is_killed_once_then_nothing_stops(
    sink: Sink, writer: Writer, lake: Path, deaths: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_jobs, "table_task", partial(poisonous, "kill", deaths, 2))
    fill(writer, 1)
    follow(sink)
    assert stopped_tables(str(lake)) == []
    assert lake_rows(lake, POISON) == [{"id": 1}]
    check_others(lake, 1)


def test_table_when_its_engine_panics_then_it_alone_stops_until_it_is_retried(
    sink: Sink, writer: Writer, lake: Path, deaths: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_jobs, "table_task", partial(poisonous, "panic", deaths, 1))
    fill(writer, 1)
    follow(sink)
    check_others(lake, 1)
    stops = {stop.table.table: stop for stop in stopped_tables(str(lake))}
    assert "Panic in" in stops["poison"].message
    assert commands(stops["poison"].message) == [["sync", "retry", "shop", "shop.poison"]]
    sink.ask_retry([table_id(POISON)])
    sink.retry_due()
    assert stopped_tables(str(lake)) == []
    assert lake_rows(lake, POISON) == [{"id": 1}]


def test_event_of_a_verification_when_its_worker_is_killed_then_it_is_known_and_its_table_does_not_stop(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "PAUSE_SECONDS", 0.0)
    writer.cut(Event(POISON, "VERIFICATION_STARTED", dump="v"))
    found = entry_rows(LandingLog(str(writer.folder)).read_entry(1))
    rows = [Row(**{name: row.get(name) for name in ROW_SCHEMA.names}) for row in found]

    def run(rows: Sequence[Row], left_alone: frozenset[TableId]) -> list[Message]:
        if any(row["table"] is not None for row in rows):
            raise isolation.JobLost
        return []

    (event,) = isolation.isolated([rows], run, lambda: True, Families())
    assert isinstance(event, EventSeen)
    assert event.seen.event.kind == "VERIFICATION_STARTED"


def test_killed_when_it_is_no_panic_then_the_task_ends() -> None:
    def kill() -> table_task.Versions:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        table_task.apply_table(table_id(POISON), [TableFile(1, 1, "", "", 1, 1, 1, 1)], kill)


def test_rows_when_they_are_large_and_their_file_is_small_then_the_rows_count(writer: Writer, lake: Path) -> None:
    text = Table("texts", {"id": pa.int32(), "note": pa.string()})
    file = TableFile(1, 1, "", "", 1000, 400_000, 1, 1000, plain_bytes=385 << 20)
    assert not TaskSize().holds([file])
    assert TaskSize().holds([TableFile(1, 1, "", "", 1000, 400_000, 1, 1000)])
    writer.cut((text, [insert(id=number, note="x" * 10_000) for number in range(100)]))
    (outcome,) = apply_entries(writer.folder, lake, TaskSize(plain_bytes=900_000))
    assert outcome.result is Result.LARGE
    (outcome,) = apply_entries(writer.folder, lake, TaskSize(plain_bytes=1_100_000))
    assert outcome.result is Result.APPLIED
