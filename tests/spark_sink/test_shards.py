"""The same table of many sources, read as one at one vector of cuts."""

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest
from pyspark.sql import SparkSession

from spark_sink.errors import CutNotComplete, ShardsDiffer, TableNotInLake
from spark_sink.lake.table_options import OptionRules
from spark_sink.lake.tail import Waiting
from spark_sink.lake_command import main
from spark_sink.reading_at import lake_at
from spark_sink.shards import FROM, Shards, shards_at
from tests.spark_sink.landing import COMMIT_US, Table, Writer, delete, insert, update
from tests.spark_sink.test_reading_at import batch
from tests.spark_sink.test_table_folders import Sinking

ORDERS = Table("orders", {"id": pa.int32(), "note": pa.string()})
WIDER = Table("orders", {"id": pa.int32(), "note": pa.string(), "total": pa.uint64()})
ODD = Table("orders", {"id": pa.int32(), "Total": pa.int32()}, database="o'brien\\")
PLACE = tuple(FROM)
Row = tuple[object, ...]


def rows(shards: Shards, *names: str) -> list[Row]:
    return sorted((tuple(row[name] for name in names) for row in shards.arrow().to_pylist()), key=repr)


@pytest.fixture
def sharded(writer: Writer, lake: Path) -> Writer:
    """Of two sources, and of two databases of one; with columns that only some have, in types that differ."""
    writer.cut((ORDERS, [insert(id=1, note="a"), insert(id=2, note="b")]), source="east")
    writer.cut((WIDER, [insert(id=1, note="c", total=2**64 - 1)]), source="west")
    writer.cut((ODD, [insert(id=1, Total=-7)]), source="west")
    batch(writer, lake, 1, writer.entry)
    return writer


EXPECTED = [
    ("east", "shop", 1, "a", None),
    ("east", "shop", 2, "b", None),
    ("west", "o'brien\\", 1, None, Decimal(-7)),
    ("west", "shop", 1, "c", Decimal(2**64 - 1)),
]
SHOWN = (*PLACE[:2], "id", "note", "Total")


def test_tables_of_many_sources_when_read_as_one_then_each_row_says_whose_it_is_and_no_value_is_lost(
    sharded: Writer, lake: Path
) -> None:
    found = shards_at(str(lake), ["acme/*/orders"])
    assert rows(found, *SHOWN) == EXPECTED
    assert found.key == (*PLACE, "id")
    assert [(each.source, each.cut) for each in found.at.sources] == [("east", 1), ("west", 2)]
    keys = rows(found, *found.key)
    assert len(set(keys)) == len(keys) == 4
    assert rows(shards_at(str(lake), ["acme/*/shop/orders"]), "id") == [(1,), (1,), (2,)]


def test_tables_as_one_when_a_source_goes_on_then_are_at_one_cut_of_each_source(sharded: Writer, lake: Path) -> None:
    sharded.commit_us = COMMIT_US + 5_000_000
    later = update({"id": 2, "note": "b"}, {"id": 2, "note": "later"})
    sharded.cut((ORDERS, [delete(id=1, note="a"), later]), source="east")
    batch(sharded, lake, sharded.entry, sharded.entry, waiting=Waiting(3600, -1, part_of_table=1e9))
    cuts = {("acme", "east"): 1, ("acme", "west"): 2}
    before = Shards.of(lake_at(str(lake), groups=cuts, cuts=cuts))
    assert rows(before, *SHOWN) == EXPECTED
    assert rows(shards_at(str(lake), ["acme/*/orders"]), *SHOWN) == [("east", "shop", 2, "later", None), *EXPECTED[2:]]
    with pytest.raises(CutNotComplete, match="acme/west"):
        shards_at(str(lake), ["acme/*/orders"], at_us=COMMIT_US + 1_000_000)


def test_tables_as_one_when_they_keep_deleted_rows_then_has_the_living_ones(writer: Writer, lake: Path) -> None:
    sinking = Sinking(writer, lake)
    sinking.options = OptionRules.parse(["acme/west/*=soft_delete,commit_time"])
    for source in ("east", "west"):
        writer.cut((ORDERS, [insert(id=1, note="a"), insert(id=2, note="b")]), source=source)
        writer.cut((ORDERS, [delete(id=1, note="a")]), source=source)
    sinking.follow("{database}/{source}/{table}")
    found = shards_at(str(lake), ["acme/*"])
    assert rows(found, *PLACE, "id") == [(source, "shop", "orders", 2) for source in ("east", "west")]
    assert "`_menura_is_deleted` IS NOT TRUE" in found.statement("orders").split("UNION ALL")[1]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Table("orders", {"id": pa.int32(), "note": pa.float64()}), "both columns note"),
        (Table("orders", ORDERS.columns, key=("note",)), "keys are (id) and (note)"),
        (Table("orders", ORDERS.columns, key=()), "keys are (id) and ()"),
    ],
)
def test_tables_as_one_when_they_are_of_other_kinds_then_both_are_named(
    writer: Writer, lake: Path, other: Table, said: str
) -> None:
    writer.cut((ORDERS, [insert(id=1, note="a")]), source="east")
    writer.cut(
        (other, [insert(id=1, note=1.5 if "float" in said or other.columns["note"] == pa.float64() else "a")]),
        source="west",
    )
    batch(writer, lake, 1, 2)
    with pytest.raises(ShardsDiffer) as found:
        shards_at(str(lake), ["acme/*/shop/orders"])
    assert said in str(found.value)
    assert "acme/east: shop.orders and acme/west: shop.orders" in str(found.value)


def test_tables_as_one_when_none_fits_or_they_are_of_two_tenants_then_is_refused(sharded: Writer, lake: Path) -> None:
    with pytest.raises(TableNotInLake, match=r"acme/\*/none"):
        shards_at(str(lake), ["acme/*/none"])
    sharded.cut((ORDERS, [insert(id=1, note="a")]), tenant="other", source="east")
    batch(sharded, lake, sharded.entry, sharded.entry)
    with pytest.raises(ShardsDiffer, match="two tenants"):
        shards_at(str(lake), ["*/shop/orders"])


def test_command_when_tables_are_to_be_one_then_writes_one_view_or_file(
    sharded: Writer, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*arguments: str) -> int:
        asked = ["at", "newest", "acme/*/orders", "--lake", str(lake), *arguments]
        monkeypatch.setattr("sys.argv", ["menura lake", *asked])
        return main()

    assert command("--union", "orders", "--format", "csv", "--output", str(tmp_path / "out")) == 0
    read = pyarrow.csv.read_csv(tmp_path / "out" / "orders.csv")
    assert read.num_rows == 4 and read.column_names[:3] == list(PLACE)
    assert (tmp_path / "out" / "cut.json").is_file()
    assert command("--union", "orders", "--format", "sql") == 0
    assert capsys.readouterr().out.count("UNION ALL") == 2
    for name, form in ("a/b", "sql"), ("orders", "text"), ("orders", "arrow"):
        assert command("--union", name, "--format", form) == 2
        assert "SINK_SETTING_INVALID" in capsys.readouterr().err


def test_tables_as_one_when_read_in_spark_then_are_the_same_rows(
    sharded: Writer, lake: Path, session: SparkSession
) -> None:
    found = shards_at(str(lake), ["acme/*/orders"])
    session.sql(found.statement("all orders").rstrip(";"))
    found.create_view(session, "same_orders")
    for name in ("`all orders`", "same_orders"):
        read = session.sql(f"SELECT {', '.join(SHOWN)} FROM {name}").collect()
        assert sorted(map(tuple, read), key=repr) == EXPECTED
