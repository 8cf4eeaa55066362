"""Small tables that a worker knows from its last batch: their commits are Delta's own, and nobody else's is lost."""

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyspark.sql import SparkSession

from spark_sink.lake import known_table
from spark_sink.lake.delta_table import (
    Layout,
    append,
    create_table,
    has_files,
    open_again,
    open_table,
    read_small,
    remember_table,
    replace_rows,
    rewrite,
    scan,
    schema_of,
    size_bytes,
)
from spark_sink.lake.known_table import KnownTable, recall, statistics

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string()), ("at", pa.timestamp("us"))])
APPLICATION = "acme/shop"


def rows(*ids: int) -> pa.Table:
    made = [{"id": number, "word": f"w{number}", "at": 1_700_000_000_000_000 + number} for number in ids]
    return pa.Table.from_pylist(made, schema=SCHEMA)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A table that this process knows."""
    made = str(tmp_path / "t")
    table = create_table(made, SCHEMA, Layout("", ("id", "word", "at"), ("id",)))
    append(table, rows(1, 2), [(APPLICATION, 1)])
    remember_table(made, table, APPLICATION)
    return made


def opened(folder: str) -> KnownTable:
    table = recall(folder)
    assert table is not None and table.known is not None
    return table


def ids(folder: str) -> list[int]:
    return sorted(scan(DeltaTable(folder), "SELECT id FROM t").read_all()["id"].to_pylist())


def test_a_known_table_when_rows_are_appended_and_replaced_then_delta_reads_them_and_their_numbers(folder: str) -> None:
    table = opened(folder)
    append(table, rows(3), [(APPLICATION, 2)])
    assert ids(folder) == [1, 2, 3]
    replace_rows(table, rows(4, 5), [(APPLICATION, 3)])
    assert ids(folder) == [4, 5]
    append(table, rows(), [(APPLICATION, 4)])
    assert table.known is not None
    found = DeltaTable(folder)
    assert (found.version(), found.transaction_version(APPLICATION), len(found.file_uris())) == (4, 4, 1)
    assert (table.version(), table.transaction_version(APPLICATION)) == (4, 4)


def test_a_table_that_is_not_remembered_when_it_is_opened_then_its_commits_are_the_same(folder: str) -> None:
    write_deltalake(folder, rows(3), mode="append")
    assert recall(folder) is None
    table = open_again(folder, APPLICATION)
    assert isinstance(table, KnownTable)
    append(table, rows(4), [(APPLICATION, 2)])
    assert table.known is not None and table.version() == 3
    assert ids(folder) == [1, 2, 3, 4]


def test_a_known_table_when_another_is_faster_then_the_commit_fails_and_nothing_is_lost(folder: str) -> None:
    table = opened(folder)
    write_deltalake(folder, rows(3), mode="append")
    with pytest.raises(CommitFailedError):
        replace_rows(table, rows(9), [(APPLICATION, 2)])
    assert ids(folder) == [1, 2, 3]
    assert not list(Path(folder).glob("*.tmp"))


def test_a_known_table_when_delta_rs_has_to_go_on_then_it_does_at_the_newest_version(folder: str) -> None:
    table = opened(folder)
    append(table, rows(3), [(APPLICATION, 2)])
    rewrite(table, SCHEMA, lambda found: found)
    assert table.known is None and table.version() == 3
    append(table, rows(4), [(APPLICATION, 3)])
    assert ids(folder) == [1, 2, 3, 4]
    remember_table(folder, table, APPLICATION)
    assert opened(folder).transaction_version(APPLICATION) == 3


def test_rows_when_their_columns_are_not_the_tables_or_they_are_many_then_delta_rs_writes_them(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = opened(folder)
    append(table, rows(3).cast(SCHEMA.set(0, pa.field("id", pa.int32()))), [(APPLICATION, 2)])
    assert table.known is None
    remember_table(folder, table, APPLICATION)
    monkeypatch.setattr(known_table, "MOST_ROWS", 1)
    table = opened(folder)
    append(table, rows(4, 5), [(APPLICATION, 3)])
    assert table.known is None
    assert ids(folder) == [1, 2, 3, 4, 5]


ASKS_FOR_MORE: dict[str, Callable[[DeltaTable], object]] = {
    "a change feed": lambda table: table.alter.set_table_properties({"delta.enableChangeDataFeed": "true"}),
    "appends alone": lambda table: table.alter.set_table_properties({"delta.appendOnly": "true"}),
    "a constraint": lambda table: table.alter.add_constraint({"some": "id > 0"}),
    "deletion vectors": lambda table: table.alter.add_feature(TableFeatures.DeletionVectors, True),
}


@pytest.mark.parametrize("what", ASKS_FOR_MORE)
def test_a_table_when_it_asks_more_of_its_writers_then_delta_rs_has_it(folder: str, what: str) -> None:
    ASKS_FOR_MORE[what](DeltaTable(folder))
    table = open_again(folder, APPLICATION)
    assert table is not None and not isinstance(table, KnownTable)
    remember_table(folder, table, APPLICATION)
    assert recall(folder) is None


@pytest.mark.parametrize("change", ["delete", "update"])
def test_rows_when_delta_rs_has_written_some_files_and_this_process_others_then_all_are_read(
    folder: str, change: str
) -> None:
    """Its own files may have views of texts, which are no texts to Arrow."""
    append(opened(folder), rows(3), [])
    table = DeltaTable(folder)
    if change == "delete":
        table.delete("id = 1")
    else:
        table.update({"word": "'w2'"}, predicate="id = 2")
    known = open_again(folder, APPLICATION)
    assert isinstance(known, KnownTable)
    append(known, rows(4), [])
    found = read_small(known, 100, 1 << 20)
    assert found is not None and found.schema == SCHEMA
    assert sorted(found["word"].to_pylist()) == ["w1", "w2", "w3", "w4"][change == "delete" :]


def test_a_table_when_it_has_partitions_then_delta_rs_has_it(tmp_path: Path) -> None:
    folder = str(tmp_path)
    properties = {"delta.dataSkippingStatsColumns": "id"}
    DeltaTable.create(folder, SCHEMA, partition_by=["word"], configuration=properties)
    assert not isinstance(open_again(folder, APPLICATION), KnownTable)


def test_files_when_they_are_many_then_they_are_not_remembered_and_rows_are_appended_all_the_same(folder: str) -> None:
    for number in range(2, 15):
        table = opened(folder)
        append(table, rows(number + 1), [(APPLICATION, number)])
        assert table.known is not None
        remember_table(folder, table, APPLICATION)
    assert table.known.files is None
    assert size_bytes(table) == size_bytes(DeltaTable(folder)) and has_files(table)
    assert ids(folder) == list(range(1, 16))
    table = opened(folder)
    replace_rows(table, rows(1), [(APPLICATION, 15)])
    assert ids(folder) == [1] and table.known is None


def test_statistics_when_bounds_have_no_short_word_then_they_are_wider_or_left_out() -> None:
    columns = {
        "n": pa.array([3, None, -1], pa.int64()),
        "d": pa.array([date(2020, 1, 2), None, date(1, 1, 1)], pa.date32()),
        "t": pa.array([1_700_000_000_123_456, 5, -1], pa.timestamp("us")),
        "z": pa.array([1_700_000_000_123_456, 5, None], pa.timestamp("us", "UTC")),
        "far": pa.array([2**62, 0, None], pa.timestamp("us")),
        "s": pa.array(["b", "a", "c"]),
        "long": pa.array(["b", "a" * 33, "c"]),
        "none": pa.nulls(3, pa.int64()),
    }
    found = statistics(pa.table(columns), ",".join(f"`{name}`" for name in columns))
    assert found == {
        "numRecords": 3,
        "minValues": {
            "n": -1,
            "d": "0001-01-01",
            "t": "1969-12-31 23:59:59.999",
            "z": "1970-01-01T00:00:00.000Z",
            "s": "a",
        },
        "maxValues": {
            "n": 3,
            "d": "2020-01-02",
            "t": "2023-11-14 22:13:20.124",
            "z": "2023-11-14T22:13:20.124Z",
            "s": "c",
        },
        "nullCount": {"n": 1, "d": 1, "t": 0, "z": 1, "far": 1, "s": 0, "long": 0, "none": 3},
    }


def test_tables_when_they_are_many_then_some_are_forgotten(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_table, "MOST_TABLES", 3)
    monkeypatch.setattr(known_table, "_remembered", {})
    table = open_table(folder)
    for number in range(20):
        remember_table(folder + "/." * (19 - number), table, APPLICATION)
    assert len(known_table._remembered) == 3
    assert opened(folder).version() == 1
    assert len(known_table._remembered) == 2


@pytest.mark.long
@pytest.mark.spark
def test_commits_when_spark_reads_them_then_it_finds_each_row_and_what_spark_writes_is_noticed(
    tmp_path: Path, session: SparkSession
) -> None:
    folder = str(tmp_path / "t")
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("word", pa.string()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us")),
            ("zoned", pa.timestamp("us", "UTC")),
            ("price", pa.decimal128(20, 2)),
            ("part", pa.float64()),
            ("raw", pa.binary()),
        ]
    )
    create_table(folder, schema, Layout("", tuple(schema.names), ("id", "word")))
    at = 1_700_000_000_123_456
    for number in range(1, 5):
        table = open_again(folder, APPLICATION)
        assert isinstance(table, KnownTable)
        instant = at + number * 86_400_000_000
        made = {"id": number, "word": f"w{number}", "day": instant // 86_400_000_000, "at": instant, "zoned": instant}
        values = made | {"price": Decimal(f"{number}.25"), "part": number / 3, "raw": b"\x00\xff"}
        columns = [pa.array([values[field.name]], field.type) for field in schema]
        append(table, pa.table(columns, schema=schema), [(APPLICATION, number)])
        assert table.known is not None
        remember_table(folder, table, APPLICATION)
    frame = session.read.format("delta").load(folder)
    held = DeltaTable(folder).to_pyarrow_table().sort_by("id").to_pylist()
    found = [row.asDict() for row in frame.orderBy("id").collect()]
    assert [{**each, "zoned": None} for each in found] == [{**each, "zoned": None} for each in held]
    for condition in (
        "id = 3",
        "word = 'w3'",
        "day = date'2023-11-17'",
        "at = timestamp_ntz'2023-11-17 22:13:20.123456'",
        "zoned = timestamp'2023-11-17 22:13:20.123456Z'",
    ):
        assert [row["id"] for row in frame.where(condition).collect()] == [3], condition
    history = session.sql(f"DESCRIBE HISTORY delta.`{folder}`").collect()
    assert [each["operation"] for each in history] == [*["WRITE"] * 4, "CREATE TABLE"]
    # Spark writes: the next commit is on top of it, with its column.
    session.sql(f"ALTER TABLE delta.`{folder}` ADD COLUMN theirs INT")
    session.sql(f"DELETE FROM delta.`{folder}` WHERE id = 1")
    table = open_again(folder, APPLICATION)
    assert isinstance(table, KnownTable) and "theirs" in schema_of(table).names
    kept = read_small(table, 100, 1 << 20)
    assert kept is not None
    replace_rows(table, kept, [(APPLICATION, 5)])
    assert table.known is not None
    assert sorted(row["id"] for row in session.read.format("delta").load(folder).collect()) == [2, 3, 4]
    session.sql(f"ALTER TABLE delta.`{folder}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    assert not isinstance(open_again(folder, APPLICATION), KnownTable)
