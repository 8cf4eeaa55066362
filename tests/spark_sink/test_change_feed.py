"""Delta's change feed of current states: whoever follows it has the table at each version."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.status import SinkStatus
from spark_sink.ingest.table_task import TaskSize
from spark_sink.lake import retention
from spark_sink.lake.net_effect import IS_DELETED
from spark_sink.lake.retention import clean
from spark_sink.lake.table_options import OptionRules, has_change_feed
from spark_sink.running import run
from tests.spark_sink.landing import (
    Table,
    Workload,
    Writer,
    apply_entries,
    delete,
    insert,
    lake_rows,
    table_id,
    truncate,
    update,
)

TABLE = Table("t", {"id": pa.int32(), "a": pa.string()})
FEED = OptionRules.parse(["change_feed"])


def current_of(lake: Path, table: Table) -> DeltaTable:
    return DeltaTable(f"{table_id(table).folder(str(lake))}/current")


def follow_feed(delta: DeltaTable) -> None:
    """Each version's changes bring the rows of the version before to its own."""
    names = [field.name for field in delta.schema().fields]
    feed: list[dict[str, Any]] = pa.table(delta.load_cdf(starting_version=0).read_all()).to_pylist()
    rows: Counter[str] = Counter()
    for version in range(delta.version() + 1):
        for change in feed:
            if change["_commit_version"] == version:
                is_there = change["_change_type"] in ("insert", "update_postimage")
                rows[repr([change[name] for name in names])] += 1 if is_there else -1
        held = pa.table(DeltaTable(delta.table_uri, version).to_pyarrow_dataset().to_table()).to_pylist()
        assert +rows == Counter(repr([row[name] for name in names]) for row in held)
        assert not -rows


@pytest.mark.parametrize("options", ["change_feed", "acme/shop/shop.orders=change_feed,soft_delete,commit_time"])
def test_feed_when_rows_change_and_the_table_is_cleaned_then_it_leads_from_version_to_version(
    writer: Writer, lake: Path, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules, workload = OptionRules.parse([options]), Workload(7)
    for _ in range(6):
        workload.cut(writer)
        for outcome in apply_entries(writer.folder, lake, first=writer.entry, table_options=rules):
            assert outcome.message == ""
    writer.cut(truncate(workload.ORDERS), (workload.ORDERS, [insert(id=1, amount=2, note="n")]))
    apply_entries(writer.folder, lake, first=writer.entry, table_options=rules)
    monkeypatch.setattr(retention, "LIST_EVERY", 1)
    for table in (workload.ORDERS, workload.EVENTS):
        current = current_of(lake, table)
        assert has_change_feed(current) == rules.of(table_id(table)).change_feed
        clean(current.table_uri, 24)
        if has_change_feed(current):
            follow_feed(current)


def test_feed_when_its_rule_comes_and_goes_then_the_table_goes_on_and_has_it_meanwhile(
    writer: Writer, lake: Path
) -> None:
    for number, rules in enumerate((OptionRules(), FEED, OptionRules()), 1):
        writer.cut((TABLE, [insert(id=number, a="x")]))
        (outcome,) = apply_entries(writer.folder, lake, first=writer.entry, table_options=rules)
        assert outcome.message == ""
        assert has_change_feed(current_of(lake, TABLE)) == (rules is FEED)
    assert [row["id"] for row in lake_rows(lake, TABLE)] == [1, 2, 3]


@pytest.mark.spark
def test_feed_when_spark_and_workers_have_merged_then_table_changes_shows_both(
    session: SparkSession, writer: Writer, lake: Path
) -> None:
    checkpoint = f"{lake}/_menura/checkpoint"
    plain = Table("p", TABLE.columns)
    rules = OptionRules.parse(["change_feed", "acme/shop/shop.t=change_feed,soft_delete"])
    settings = SinkSettings(
        str(writer.folder), str(lake), checkpoint, available_now=True, size=TaskSize(rows=5), table_options=rules
    )
    for changes in (
        [insert(id=number, a="x") for number in range(8)],
        [update({"id": number, "a": "x"}, {"id": number, "a": "y"}) for number in range(3)],  # six rows: Spark's
        [delete(id=7, a="x")],
    ):
        writer.cut((TABLE, changes), (plain, changes))
        run(session, settings, threading.Event(), SinkStatus())
    for table in (TABLE, plain):
        path = f"{table_id(table).folder(str(lake))}/current"
        found = session.sql(f"SELECT * FROM table_changes_by_path('{path}', 0)").collect()
        kinds = Counter(row["_change_type"] for row in found)
        marked = Counter({"update_preimage": 1, "update_postimage": 1} if table is TABLE else {"delete": 1})
        assert kinds == Counter(insert=8, update_preimage=3, update_postimage=3) + marked
        assert len([row for row in found if table is TABLE and row[IS_DELETED]]) == (table is TABLE)
        follow_feed(current_of(lake, table))
