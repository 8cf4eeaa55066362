"""Offsets, limits and partitions of the cut log's source, without a session."""

import pyarrow as pa
import pytest
from menura.landing import entry_path
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_sink.ingest.cut_log_source import CutLogReader, Limits, RowsPartition, divide
from spark_sink.landed.landing_log import LandingLog
from tests.spark_sink.landing import Table, Writer, insert

TABLES = [Table(f"t{number}", {"id": pa.int32()}) for number in range(4)]


def reader(writer: Writer, partitions: int = 2, limits: Limits | None = None) -> CutLogReader:
    return CutLogReader(LandingLog(str(writer.folder)), lambda: partitions, limits or Limits())


def fill(writer: Writer, entries: int) -> None:
    for _ in range(entries):
        writer.cut(*((table, [insert(id=1)]) for table in TABLES))


def ends(source: CutLogReader) -> list[int]:
    """Where each batch ends, until nothing is left."""
    found, start = [], source.initialOffset()
    while (end := source.latestOffset(start, source.getDefaultReadLimit())) != start:
        source.partitions(start, end)
        found.append(end["entry"])
        start = end
    return found


def test_an_empty_landing_when_asked_then_there_is_nothing_new(writer: Writer) -> None:
    assert ends(reader(writer)) == []


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(), [5]),
        (Limits(cuts=2), [2, 4, 5]),
        (Limits(files=9), [2, 4, 5]),
        (Limits(files=1), [1, 2, 3, 4, 5]),
        (Limits(bytes=1), [1, 2, 3, 4, 5]),
    ],
)
def test_five_entries_when_limited_then_batches_end_before_the_limit_yet_hold_one_entry(
    writer: Writer, limits: Limits, expected: list[int]
) -> None:
    fill(writer, 5)
    assert ends(reader(writer, limits=limits)) == expected


def test_all_available_when_asked_for_then_the_limits_do_not_count(writer: Writer) -> None:
    fill(writer, 5)
    source = reader(writer, limits=Limits(cuts=1))
    assert source.latestOffset({"entry": 1}, ReadAllAvailable()) == {"entry": 5, "landing": writer.landing}


def test_available_now_when_prepared_then_later_entries_wait(writer: Writer) -> None:
    fill(writer, 6)
    source = reader(writer)
    source.prepareForTriggerAvailableNow()
    assert ends(source) == [6]
    fill(writer, 1)
    assert source.latestOffset({"entry": 6}, ReadAllAvailable())["entry"] == 6


@pytest.mark.parametrize("landing_format", [8, 9])
def test_entries_when_they_lie_as_their_landing_was_begun_then_they_are_found_in_order(
    writer: Writer, landing_format: int
) -> None:
    writer.landing_format, writer.entry = landing_format, 998
    fill(writer, 3)
    source = reader(writer)
    source.prepareForTriggerAvailableNow()
    assert source.latestOffset({"entry": 998}, ReadAllAvailable())["entry"] == 1001
    assert len(list((writer.folder / "log").glob("*.json"))) == (3 if landing_format == 8 else 0)


def test_a_batch_when_planned_then_a_table_stands_in_one_partition_and_in_order(writer: Writer) -> None:
    fill(writer, 3)
    parts = reader(writer, partitions=3).partitions({"entry": 0}, {"entry": 3})
    places: dict[str, set[int]] = {}
    for place, part in enumerate(parts):
        assert isinstance(part, RowsPartition)
        for row in part.rows:
            if row.get("path"):
                places.setdefault(row["table"], set()).add(place)
        for name in {row["table"] for row in part.rows if row.get("path")}:
            assert [row["cut"] for row in part.rows if row.get("table") == name] == [1, 2, 3]
    assert len(parts) == 3 and all(len(found) == 1 for found in places.values())
    rows = [batch for part in parts for batch in reader(writer).read(part)]
    assert sum(batch.num_rows for batch in rows) == 3 * (1 + len(TABLES))


def test_a_restart_in_the_middle_when_partitions_are_asked_first_then_they_are_the_same(writer: Writer) -> None:
    fill(writer, 4)
    assert reader(writer).partitions({"entry": 2}, {"entry": 3}) == reader(writer).partitions(
        {"entry": 2}, {"entry": 3}
    )


def test_an_unreadable_entry_when_met_then_it_comes_alone_with_its_problem(writer: Writer) -> None:
    fill(writer, 3)
    (writer.folder / entry_path(2)).write_text("{}")
    source = reader(writer)
    assert source.latestOffset({"entry": 0}, ReadAllAvailable())["entry"] == 1
    assert source.latestOffset({"entry": 1}, ReadAllAvailable())["entry"] == 2
    (part,) = source.partitions({"entry": 1}, {"entry": 2})
    assert isinstance(part, RowsPartition)
    assert [(row["entry"], "format" in row["problem"]) for row in part.rows] == [(2, True)]


def test_an_epoch_that_falls_when_met_then_the_entry_is_refused(writer: Writer) -> None:
    fill(writer, 1)
    entry = writer.folder / entry_path(1)
    entry.write_bytes(entry.read_bytes().replace(b'"epoch":1', b'"epoch":2'))
    fill(writer, 1)
    assert ends(reader(writer)) == [1, 2]
    source = reader(writer)
    source.latestOffset({"entry": 0}, ReadAllAvailable())
    (part,) = source.partitions({"entry": 1}, {"entry": 2})
    assert isinstance(part, RowsPartition) and "epoch 2" in part.rows[0]["problem"]


def test_a_cut_of_a_former_owner_when_it_stands_behind_a_fence_then_the_entry_is_refused(writer: Writer) -> None:
    fill(writer, 1)
    writer.fence(2)
    fill(writer, 1)
    source = reader(writer)
    assert source.latestOffset({"entry": 0}, ReadAllAvailable())["entry"] == 2
    assert source.latestOffset({"entry": 2}, ReadAllAvailable())["entry"] == 3
    (part,) = source.partitions({"entry": 2}, {"entry": 3})
    assert isinstance(part, RowsPartition)
    assert "from cut 1 of epoch 2 to cut 2 of epoch 1" in part.rows[0]["problem"]


def test_tables_of_unlike_size_when_divided_then_the_loads_are_even() -> None:
    names = {"tenant": "a", "source": "s", "database": "d"}
    rows = [{**names, "table": f"t{n}", "path": "p", "bytes": size << 20} for n, size in enumerate([60, 30, 20, 10])]
    parts = divide(rows, 2)
    assert [sum(row["bytes"] for row in part) >> 20 for part in parts] == [60, 60]
