"""A worker that is killed beside batches: others go on without the tables at work, of which each is then tried alone.

The sink runs as it does in production, but for its loop, of which the test makes each turn itself.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from spark_sink.ingest import batch_jobs, catching_up, isolation, table_task
from spark_sink.ingest.at_work import job_folder, tables_at_work, told_at_work
from spark_sink.ingest.query import Sink
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.table_task import TaskSettings
from spark_sink.lake.records import StoppedTable
from spark_sink.reading import stopped_tables
from spark_sink.work import TableId
from tests.spark_sink.landing import Event, Writer, insert, lake_rows, table_id
from tests.spark_sink.test_catching_up import applied, following
from tests.spark_sink.test_worker_killed import OTHERS, POISON, poisonous
from tests.stack import wait_for

FEW = OTHERS[:6]


@pytest.fixture
def settings(writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch) -> SinkSettings:
    monkeypatch.setattr(catching_up, "REST_SECONDS", 0.0)
    monkeypatch.setattr(isolation, "PAUSE_SECONDS", 0.0)
    return SinkSettings(str(writer.folder), str(lake), str(lake / "_menura/checkpoint"), 0.1)


@pytest.fixture
def deaths(tmp_path: Path) -> Path:
    folder = tmp_path / "deaths"
    folder.mkdir()
    return folder


def fill(writer: Writer, number: int, *, with_poison: bool = True) -> None:
    tables = [*FEW, POISON] if with_poison else FEW
    writer.cut(*((table, [insert(id=number)]) for table in tables))


def check_others(lake: Path, *numbers: int) -> None:
    assert [lake_rows(lake, table) for table in FEW] == [[{"id": number} for number in numbers]] * len(FEW)


def stop_of_poison(lake: Path) -> StoppedTable | None:
    return next((stop for stop in stopped_tables(str(lake)) if stop.table == table_id(POISON)), None)


def turns(sink: Sink, is_over: Callable[[], bool]) -> None:
    for _ in range(60):
        if is_over():
            return
        sink.retry_due()
    raise AssertionError("turns do not end")


@pytest.mark.spark
def test_batch_when_a_table_kills_its_worker_then_it_ends_without_it_which_stops_once_it_was_alone_often_enough(
    session: SparkSession,
    settings: SinkSettings,
    writer: Writer,
    lake: Path,
    deaths: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_jobs, "table_task", partial(poisonous, "kill", deaths, 1000))
    with following(session, settings) as sink:
        fill(writer, 1)
        applied(sink, writer)
        assert len(list(deaths.iterdir())) == 1, "its batch was done again without it"
        stop = stop_of_poison(lake)
        assert stop is not None and (stop.code, stop.terminal) == ("TABLE_BEHIND", False)
        assert "it is written alone" in stop.message
        fill(writer, 2)
        applied(sink, writer)
        assert len(list(deaths.iterdir())) == 1
        turns(sink, lambda: {each.code for each in stopped_tables(str(lake))} == {"WORKER_KILLED"})
        assert [each.table for each in stopped_tables(str(lake))] == [table_id(POISON)]
        assert len(list(deaths.iterdir())) == 1 + isolation.ATTEMPTS
        check_others(lake, 1, 2)
        fill(writer, 3)
        applied(sink, writer)
        check_others(lake, 1, 2, 3)
        monkeypatch.setattr(batch_jobs, "table_task", table_task.table_task)
        sink.ask_retry([table_id(POISON)])
        turns(sink, lambda: not stopped_tables(str(lake)))
    assert lake_rows(lake, POISON) == [{"id": number} for number in (1, 2, 3)]


@pytest.mark.spark
@pytest.mark.parametrize("kills", [1, 2])
def test_table_when_its_worker_is_killed_a_few_times_then_it_goes_on_and_has_all_rows_once(
    session: SparkSession,
    settings: SinkSettings,
    writer: Writer,
    lake: Path,
    deaths: Path,
    monkeypatch: pytest.MonkeyPatch,
    kills: int,
) -> None:
    monkeypatch.setattr(batch_jobs, "table_task", partial(poisonous, "kill", deaths, kills))
    with following(session, settings) as sink:
        fill(writer, 1)
        applied(sink, writer)
        fill(writer, 2)
        applied(sink, writer)
        turns(sink, lambda: not stopped_tables(str(lake)))
        assert not sink._jobs.tried_alone
        fill(writer, 3)
        applied(sink, writer)
    check_others(lake, 1, 2, 3)
    assert lake_rows(lake, POISON) == [{"id": number} for number in (1, 2, 3)]
    assert len(list(deaths.iterdir())) == kills


@pytest.mark.spark
def test_batch_when_a_killed_worker_does_not_say_where_it_was_then_it_is_done_in_parts(
    session: SparkSession,
    settings: SinkSettings,
    writer: Writer,
    lake: Path,
    deaths: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_jobs, "table_task", partial(poisonous, "kill", deaths, 1000))
    monkeypatch.setattr(batch_jobs, "tables_at_work", lambda _: frozenset())
    with following(session, settings) as sink:
        fill(writer, 1)
        applied(sink, writer)
        stop = stop_of_poison(lake)
        assert stop is not None and stop.code == "WORKER_KILLED"
    check_others(lake, 1)


def hungry(settings: TaskSettings) -> Callable[[Iterable[Row]], Iterator[str]]:
    """`table_task`: of two tables that are in one job, at once, each kills its worker; alone only the one does."""
    task, apply_work = table_task.table_task(settings), table_task.apply_work
    both = {table_id(POISON), table_id(FEW[0])}

    def run(rows: Iterable[Row]) -> Iterator[str]:
        def work(log: object, lake: object, table: TableId, *others: object) -> object:
            are_both = bool(settings.at_work) and both.isdisjoint(settings.stopped)
            if table in both and are_both:
                wait_for("the other one", lambda: both <= tables_at_work(settings.at_work) or None, 300)
            if table == table_id(POISON) or (table in both and are_both):
                os.kill(os.getpid(), signal.SIGKILL)
            return apply_work(log, lake, table, *others)

        table_task.apply_work = work  # this process's alone, and only while the task lasts
        try:
            yield from task(rows)
        finally:
            table_task.apply_work = apply_work

    return run


@pytest.mark.spark
@pytest.mark.parametrize("why", ["they begin anew", "they are lost"])
def test_tables_when_they_can_not_catch_up_in_parts_then_the_one_that_kills_its_worker_is_found(
    session: SparkSession, settings: SinkSettings, writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    tables = (POISON, FEW[0])
    fill(writer, 1)
    if why == "they begin anew":
        cut = writer.cut(*((table, [insert(id=2)]) for table in tables))
        for table in tables:
            (file,) = (writer.folder / f"data/acme/shop/shop/{table.name}").glob(f"*-{cut:020d}-*")
            file.unlink()
    with following(session, settings) as sink:
        applied(sink, writer)
    if why == "they begin anew":
        writer.cut(*(Event(table, "DUMP_STARTED", dump="d1") for table in tables))
    else:
        for table in tables:
            shutil.rmtree(table_id(table).folder(str(lake)))
    writer.cut(*((table, [insert(id=3)]) for table in tables))
    monkeypatch.setattr(batch_jobs, "table_task", hungry)
    with following(session, settings) as sink:
        applied(sink, writer)
        turns(sink, lambda: [each.code for each in stopped_tables(str(lake))] == ["WORKER_KILLED"])
        assert [each.table for each in stopped_tables(str(lake))] == [table_id(POISON)]
        assert not sink._jobs.tried_alone
    kept = [3] if why == "they begin anew" else [1, 3]
    assert sorted(row["id"] for row in lake_rows(lake, FEW[0])) == kept


def test_folder_of_a_job_when_it_is_gone_then_no_table_is_known_to_be_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tables_at_work(str(tmp_path / "gone")) == tables_at_work("") == frozenset()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with job_folder(is_wanted=True) as folder:
        assert folder == ""


def test_tables_at_work_when_tasks_begin_and_end_then_those_are_told_that_have_not_ended(tmp_path: Path) -> None:
    one, other = table_id(POISON), table_id(FEW[0])
    with told_at_work(str(tmp_path)) as begins:
        begins(one)
        begins(other)
        assert tables_at_work(str(tmp_path)) == {other}
        with told_at_work(str(tmp_path)) as second:
            second(one)
            assert tables_at_work(str(tmp_path)) == {one, other}
    assert tables_at_work(str(tmp_path)) == frozenset()
    (tmp_path / "half").write_text('["acme", "sh')
    assert tables_at_work(str(tmp_path)) == frozenset(), "nobody knows"
    with told_at_work("") as begins:
        begins(one)
