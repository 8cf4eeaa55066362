"""A table that begins anew with a dump in a lake that has nothing of it: also after a restart before its first rows.

The first file of the dump follows one that the lake never had. That this is right is recorded (`_menura/errors`).
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from spark_sink.lake.delta_table import open_table, scan
from spark_sink.reading import stopped_tables
from tests.spark_sink.landing import Chunk, Event, Table, Writer, insert, lake_rows
from tests.spark_sink.test_process import sink
from tests.stack import wait_for

pytestmark = pytest.mark.spark

TABLE = Table("t", {"id": pa.int32(), "v": pa.int32()})


def codes(lake: Path) -> list[str]:
    errors = open_table(f"{lake}/_menura/errors")
    rows = scan(errors, "SELECT code FROM t ORDER BY number, at_us").read_all() if errors is not None else None
    return rows["code"].to_pylist() if rows is not None else []


def newest_file(writer: Writer) -> Path:
    return max((writer.folder / "data").rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)


@pytest.fixture
def begun(writer: Writer, lake: Path, tmp_path: Path, follow: Callable[[], None]) -> Writer:
    """The log of a table whose first file is lost, and that has begun anew with a dump without a row so far."""
    writer.cut((TABLE, [insert(id=1, v=1)]))
    there = newest_file(writer)
    (tmp_path / "name").write_text(str(there))
    shutil.move(there, tmp_path / "away")
    follow()
    assert [stop.code for stop in stopped_tables(str(lake))] == ["DATA_FILE_UNREADABLE"]
    writer.cut(Event(TABLE, "DUMP_STARTED", dump="d1"))
    follow()
    assert stopped_tables(str(lake)) == []
    return writer


def chunk(writer: Writer, key: int) -> int:
    return writer.cut(Chunk(TABLE, [{"id": key, "v": key}], writer.last_gsns["acme", "shop"], dump="d1"))


def test_first_rows_when_the_sink_starts_again_before_them_then_the_table_goes_on_with_them(
    begun: Writer, lake: Path, follow: Callable[[], None]
) -> None:
    follow()
    chunk(begun, 2)
    follow()
    begun.cut((TABLE, [insert(id=3, v=3)]))
    follow()
    assert stopped_tables(str(lake)) == []
    assert lake_rows(lake, TABLE) == [{"id": 2, "v": 2}, {"id": 3, "v": 3}]


def test_first_rows_when_the_log_is_read_again_from_its_first_entry_then_what_the_table_left_out_stays_out(
    begun: Writer, lake: Path, tmp_path: Path, follow: Callable[[], None]
) -> None:
    shutil.move(tmp_path / "away", (tmp_path / "name").read_text())
    shutil.rmtree(lake / "_menura" / "checkpoint")
    chunk(begun, 2)
    follow()
    assert stopped_tables(str(lake)) == []
    assert lake_rows(lake, TABLE) == [{"id": 2, "v": 2}]


def test_first_rows_when_their_file_stops_the_table_again_then_it_goes_on_from_its_beginning_once_it_is_there(
    begun: Writer, lake: Path, tmp_path: Path, follow: Callable[[], None]
) -> None:
    chunk(begun, 2)
    there = newest_file(begun)
    shutil.move(there, tmp_path / "chunk")
    follow()
    (stop,) = stopped_tables(str(lake))
    assert (stop.code, stop.begins_at_gsn > 0) == ("DATA_FILE_UNREADABLE", True)
    shutil.move(tmp_path / "chunk", there)
    follow()
    assert stopped_tables(str(lake)) == []
    assert lake_rows(lake, TABLE) == [{"id": 2, "v": 2}]
    begun.cut((TABLE, [insert(id=3, v=3)]))
    newest_file(begun).unlink()
    follow()
    (stop,) = stopped_tables(str(lake))
    assert stop.begins_at_gsn == 0, "rows of it are written: it goes on where it stopped"


@pytest.mark.kill
def test_first_rows_when_the_sink_is_killed_before_them_then_the_next_one_goes_on_with_them(
    writer: Writer, lake: Path, tmp_path: Path
) -> None:
    writer.cut((TABLE, [insert(id=1, v=1)]))
    newest_file(writer).unlink()
    process = sink(tmp_path)
    process.start()
    try:
        wait_for("the stop", lambda: codes(lake)[-1:] == ["DATA_FILE_UNREADABLE"])
        writer.cut(Event(TABLE, "DUMP_STARTED", dump="d1"))
        wait_for("the table to go on", lambda: codes(lake)[-1:] == [""])
        process.kill()
        chunk(writer, 2)
        process.start()
        wait_for("its rows", (lake / "acme/shop/shop/t/current").exists)
        chunk(writer, 3)
        wait_for("later rows", lambda: codes(lake)[-1:] != [""] or len(lake_rows(lake, TABLE)) == 2)
    finally:
        process.kill()
    assert stopped_tables(str(lake)) == []
    assert lake_rows(lake, TABLE) == [{"id": 2, "v": 2}, {"id": 3, "v": 3}]
