"""What messages of the sink say is to be done: the command of each message, after which the table equals its source.

The writer of the landing stands for all before it: `sync resync` lands a dump, as the control plane and an agent do.
"""

import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from menura.landing import LandedForeignKey
from pyspark.sql import SparkSession

from spark_sink.ingest.query import Sink
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.status import SinkStatus
from spark_sink.lake.changelog_retention import Kept, write_kept
from spark_sink.lake.delta_table import open_table, scan
from spark_sink.lake.folder_rules import FolderRules
from spark_sink.lake.schema_policy import SchemaRules
from spark_sink.lake.table_options import OptionRules
from spark_sink.reading import current_state, current_state_frame, stopped_tables
from spark_sink.running import run
from tests.remedies import commands, statements
from tests.spark_sink.landing import (
    Chunk,
    Event,
    Table,
    Values,
    Writer,
    altered,
    delete,
    insert,
    lake_rows,
    table_id,
    update,
)

pytestmark = pytest.mark.spark

KEYED = Table("t", {"id": pa.int32(), "note": pa.string()})
WIDE = Table("t", {**KEYED.columns, "n": pa.int32()})
KEYLESS = Table("t", KEYED.columns, key=(), whole_rows="Run on the server: SET GLOBAL whole_rows = 'ON'")
CHILD = Table("child", {"id": pa.int32(), "t": pa.int32()})
CASCADE = LandedForeignKey("child_t", ("t",), ("shop", "t"), ("id",), "cascade", "cascade", (None,))
RESYNC = ["sync", "resync", "shop", "shop.t"]
RETRY = ["sync", "retry", "shop", "shop.t"]


@dataclass
class Operator:
    session: SparkSession
    writer: Writer
    lake: Path

    def __post_init__(self) -> None:
        folder, checkpoint = str(self.writer.folder), str(self.lake / "_menura" / "checkpoint")
        self.settings = SinkSettings(folder, str(self.lake), checkpoint, available_now=True)

    def follows(self) -> None:
        """The sink is started, and does all that has landed."""
        run(self.session, self.settings, threading.Event(), SinkStatus())

    def stopped(self, code: str) -> str:
        """What is said of the table that stops."""
        self.follows()
        (stop,) = stopped_tables(str(self.lake))
        assert stop.code == code, stop.message
        return stop.message

    def told(self) -> list[str]:
        """All that was said of tables, in order."""
        errors = open_table(f"{self.lake}/_menura/errors")
        assert errors is not None
        return [str(row["message"]) for row in scan(errors, "SELECT * FROM t ORDER BY at_us").read_all().to_pylist()]

    def resyncs(self, table: Table, rows: Sequence[Values]) -> None:
        """The table as it is at its source, by a dump."""
        if table.key:
            self.writer.cut(Event(table, "DUMP_STARTED", dump="anew"))
            floor = self.writer.last_gsns["acme", "shop"]
            self.writer.cut(Chunk(table, rows, floor, dump="anew"))
            self.writer.cut(Event(table, "DUMPED", dump="anew", removes_rows_before_gsn=floor - 1))
        else:
            self.writer.cut(Event(table, "DUMPED", removes_rows=True, dump="anew"), Chunk(table, rows, dump="anew"))

    def retries(self) -> None:
        sink = Sink(self.session, self.settings, SinkStatus())
        sink.start().awaitTermination()
        sink.ask_retry([table_id(KEYED)])
        sink.retry_due()

    def equals(self, table: Table, *rows: Values) -> None:
        self.follows()
        assert stopped_tables(str(self.lake)) == []
        assert lake_rows(self.lake, table) == sorted(rows, key=repr)


@pytest.fixture
def operator(session: SparkSession, writer: Writer, lake: Path) -> Operator:
    return Operator(session, writer, lake)


def shorten(file: Path) -> None:
    pq.write_table(pq.read_table(file).slice(1), file)


#: what happens to a landed file
DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "no Parquet": lambda file: file.write_bytes(b"none"),
    "shorter": shorten,
}


@pytest.mark.parametrize("chosen", [RETRY, RESYNC], ids=["retry", "resync"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_table_when_a_landed_file_is_damaged_then_either_remedy_brings_its_rows(
    operator: Operator, tmp_path: Path, damage: str, chosen: list[str]
) -> None:
    cut = operator.writer.cut((KEYED, [insert(id=1, note="a"), insert(id=2, note="b")]))
    (file,) = (operator.writer.folder / "data/acme/shop/shop/t").glob(f"*-{cut:020d}-*")
    shutil.copy(file, tmp_path / "kept")
    DAMAGES[damage](file)
    message = operator.stopped("DATA_FILE_UNREADABLE")
    assert commands(message) == [RETRY, RESYNC]
    if chosen == RETRY:
        assert "Restore the file" in message
        shutil.copy(tmp_path / "kept", file)
        operator.retries()
    else:
        operator.resyncs(KEYED, [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}])
    operator.writer.cut((KEYED, [update({"id": 2, "note": "b"}, {"id": 2, "note": "later"})]))
    operator.equals(KEYED, {"id": 1, "note": "a"}, {"id": 2, "note": "later"})


@pytest.mark.parametrize("chosen", [RETRY, RESYNC], ids=["retry", "resync"])
def test_table_whose_schema_shall_not_change_when_it_does_then_either_remedy_brings_its_rows(
    operator: Operator, chosen: list[str]
) -> None:
    evolving = operator.settings
    operator.settings = replace(evolving, schema_changes=SchemaRules.parse(["acme/shop/shop.t=exception"]))
    operator.writer.cut((KEYED, [insert(id=1, note="a")]))
    operator.writer.cut(altered(WIDE, added={"n": 5}), (WIDE, [insert(id=2, note="b", n=6)]))
    message = operator.stopped("SCHEMA_CHANGED")
    assert commands(message) == [RETRY, RESYNC] and "ALTER TABLE t ..." in message and "--schema-changes" in message
    if chosen == RETRY:
        operator.settings = evolving
        operator.retries()
    else:
        operator.resyncs(WIDE, [{"id": 1, "note": "a", "n": 5}, {"id": 2, "note": "b", "n": 6}])
    operator.writer.cut((WIDE, [insert(id=3, note="later", n=7)]))
    operator.equals(
        WIDE, {"id": 1, "note": "a", "n": 5}, {"id": 2, "note": "b", "n": 6}, {"id": 3, "note": "later", "n": 7}
    )


def test_table_that_ignores_changes_when_its_key_is_not_followed_then_the_remedy_brings_its_rows(
    operator: Operator,
) -> None:
    other = Table("t", {**KEYED.columns, "k": pa.int32()}, key=("k",))
    evolving = operator.settings
    operator.settings = replace(evolving, schema_changes=SchemaRules.parse(["ignore"]))
    operator.writer.cut((KEYED, [insert(id=1, note="a")]))
    operator.writer.cut(altered(other, added={"k": 5}), (other, [insert(id=1, note="b", k=6)]))
    message = operator.stopped("SCHEMA_NOT_FOLLOWED")
    assert commands(message) == [RETRY] and "--schema-changes evolve" in message
    operator.settings = evolving
    operator.retries()
    operator.equals(other, {"id": 1, "note": "a", "k": 5}, {"id": 1, "note": "b", "k": 6})


@pytest.mark.parametrize("chosen", [RETRY, RESYNC], ids=["as_they_were", "resync"])
def test_table_whose_options_change_when_it_has_rows_then_either_remedy_brings_its_rows(
    operator: Operator, chosen: list[str]
) -> None:
    plain = operator.settings
    operator.writer.cut((KEYED, [insert(id=1, note="a")]))
    operator.follows()
    operator.settings = replace(plain, table_options=OptionRules.parse(["soft_delete"]))
    operator.writer.cut((KEYED, [insert(id=2, note="b"), delete(id=1, note="a")]))
    message = operator.stopped("TABLE_OPTIONS_CHANGED")
    assert commands(message) == [RESYNC] and "--table-options as they were" in message
    if chosen == RETRY:
        operator.settings = plain
        operator.retries()
    else:
        operator.resyncs(KEYED, [{"id": 2, "note": "b"}])
    operator.writer.cut((KEYED, [insert(id=3, note="later"), insert(id=4, note="x"), delete(id=4, note="x")]))
    operator.equals(KEYED, {"id": 2, "note": "b"}, {"id": 3, "note": "later"})
    whole = current_state(str(operator.lake), table_id(KEYED), with_deleted=True)
    assert sorted(whole["id"].to_pylist()) == ([2, 3] if chosen == RETRY else [2, 3, 4])


def test_table_without_a_key_when_its_deleted_rows_shall_stay_then_the_remedy_brings_its_rows(
    operator: Operator,
) -> None:
    keeping = ["soft_delete"]
    operator.settings = replace(operator.settings, table_options=OptionRules.parse(keeping))
    operator.writer.cut((KEYLESS, [insert(id=1, note="a"), insert(id=2, note="b"), delete(id=1, note="a")]))
    message = operator.stopped("TABLE_OPTION_IMPOSSIBLE")
    assert commands(message) == [RETRY]
    (_, rule, _) = message.split("'")
    operator.settings = replace(operator.settings, table_options=OptionRules.parse([*keeping, rule]))
    operator.retries()
    operator.equals(KEYLESS, {"id": 2, "note": "b"})


def test_table_when_its_folder_is_another_ones_then_with_other_rules_it_is_followed_in_its_own(
    operator: Operator,
) -> None:
    one = ["tables/{database}"]
    operator.settings = replace(operator.settings, table_folders=FolderRules.parse(one))
    operator.writer.cut((KEYED, [insert(id=1, note="a")]))
    operator.follows()
    operator.writer.cut((KEYED, [insert(id=2, note="b")]), (CHILD, [insert(id=1, t=1)]))
    message = operator.stopped("TABLE_FOLDER_REFUSED")
    assert "tables/shop" in message and "is that of acme/shop: shop.t" in message and "--table-folders" in message
    operator.settings = replace(operator.settings, table_folders=FolderRules.parse([*one, ".*[.]child={table}"]))
    operator.writer.cut((KEYED, [delete(id=1, note="a")]), (CHILD, [insert(id=2, t=1)]))
    operator.equals(CHILD, {"id": 1, "t": 1}, {"id": 2, "t": 1})
    operator.equals(KEYED, {"id": 2, "note": "b"})
    assert (operator.lake / "tables/shop/current").is_dir() and (operator.lake / "child/current").is_dir()
    assert not (operator.lake / "acme").exists()
    frame = current_state_frame(operator.session, str(operator.lake), table_id(CHILD))
    assert sorted(row["id"] for row in frame.collect()) == [1, 2]


def test_table_without_a_key_when_its_rows_come_in_parts_then_the_remedy_brings_its_rows(operator: Operator) -> None:
    operator.writer.cut((KEYLESS, [insert(id=1, note="a")]))
    operator.writer.cut((KEYLESS, [insert(id=2, _absent=("note",))]))
    message = operator.stopped("ROWS_PARTIAL")
    assert statements(message) == ["SET GLOBAL whole_rows = 'ON'"]
    assert commands(message) == [RESYNC]
    operator.resyncs(KEYLESS, [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}])
    operator.writer.cut((KEYLESS, [delete(id=1, note="a")]))
    operator.equals(KEYLESS, {"id": 2, "note": "b"})


def test_table_without_a_key_when_a_range_of_it_comes_then_the_remedy_brings_its_rows(operator: Operator) -> None:
    operator.writer.cut(Chunk(KEYLESS, [{"id": 1, "note": "a"}], 1))
    message = operator.stopped("CHUNK_WITHOUT_KEY")
    assert commands(message) == [RESYNC]
    operator.resyncs(KEYLESS, [{"id": 1, "note": "a"}, {"id": 1, "note": "a"}])
    operator.writer.cut((KEYLESS, [insert(id=2, note="b")]))
    operator.equals(KEYLESS, {"id": 1, "note": "a"}, {"id": 1, "note": "a"}, {"id": 2, "note": "b"})


def test_table_when_a_chunk_needs_changes_that_are_gone_then_the_remedy_brings_its_rows(operator: Operator) -> None:
    operator.writer.cut((KEYED, [insert(id=number, note="a") for number in range(5)]))
    operator.follows()
    logged = open_table(f"{table_id(KEYED).folder(str(operator.lake))}/changelog")
    assert logged is not None
    write_kept(logged, Kept(begins_gsn=4))
    operator.writer.cut(Chunk(KEYED, [{"id": 9, "note": "a"}], 2))
    message = operator.stopped("CHUNK_TOO_LATE")
    assert commands(message) == [RESYNC]
    operator.resyncs(KEYED, [{"id": 1, "note": "b"}])
    operator.writer.cut((KEYED, [insert(id=2, note="b")]))
    operator.equals(KEYED, {"id": 1, "note": "b"}, {"id": 2, "note": "b"})


def test_table_when_what_its_earlier_rows_hold_can_not_be_read_then_the_remedy_brings_its_rows(
    operator: Operator,
) -> None:
    operator.writer.cut((KEYED, [insert(id=1, note="a")]))
    operator.writer.cut(altered(WIDE, added={"n": "seven"}))
    message = operator.stopped("EVENT_UNREADABLE")
    assert commands(message) == [RESYNC]
    operator.resyncs(WIDE, [{"id": 1, "note": "a", "n": 7}])
    operator.writer.cut((WIDE, [insert(id=2, note="b", n=8)]))
    operator.equals(WIDE, {"id": 1, "note": "a", "n": 7}, {"id": 2, "note": "b", "n": 8})


def test_table_when_the_lakes_storage_fails_then_the_remedy_tries_it_again_at_once(
    operator: Operator, tmp_path: Path
) -> None:
    operator.writer.cut((KEYED, [insert(id=1, note="a")]))
    operator.follows()
    log = operator.lake / "acme/shop/shop/t/current/_delta_log"
    newest = max(log.glob("*.json"))
    shutil.copy(newest, tmp_path / "kept")
    newest.write_text("no JSON")
    operator.writer.cut((KEYED, [insert(id=2, note="b")]))
    message = operator.stopped("LAKE_STORAGE_FAILED")
    assert commands(message) == [RETRY]
    shutil.copy(tmp_path / "kept", newest)
    operator.retries()
    operator.equals(KEYED, {"id": 1, "note": "a"}, {"id": 2, "note": "b"})


def test_table_when_changes_before_a_file_are_missing_then_the_remedy_brings_its_rows(operator: Operator) -> None:
    operator.writer.cut((KEYED, [insert(id=1, note="a")]))
    operator.follows()
    kept = dict(operator.writer.last_cuts)
    operator.writer.last_cuts = {name: cut + 1 for name, cut in kept.items()}  # a cut that never came
    operator.writer.cut((KEYED, [insert(id=3, note="c")]))
    message = operator.stopped("PREDECESSOR_MISSING")
    assert commands(message) == [RESYNC]
    operator.resyncs(KEYED, [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}, {"id": 3, "note": "c"}])
    operator.writer.cut((KEYED, [delete(id=1, note="a")]))
    operator.equals(KEYED, {"id": 2, "note": "b"}, {"id": 3, "note": "c"})


def test_table_when_the_lake_and_the_landing_have_lost_it_then_the_remedy_brings_its_rows(operator: Operator) -> None:
    operator.writer.cut((KEYED, [insert(id=1, note="a")]))
    operator.follows()
    shutil.rmtree(operator.lake / "acme/shop/shop/t")
    for file in (operator.writer.folder / "data").rglob("*.parquet"):
        file.unlink()
    operator.stopped("DATA_FILE_UNREADABLE")
    (lost,) = [message for message in operator.told() if "LAKE_TABLE_LOST" in message]
    assert commands(lost) == [RESYNC]
    operator.resyncs(KEYED, [{"id": 1, "note": "a"}])
    operator.writer.cut((KEYED, [insert(id=2, note="b")]))
    operator.equals(KEYED, {"id": 1, "note": "a"}, {"id": 2, "note": "b"})


def follow_a_parent(operator: Operator) -> None:
    operator.writer.cut(Event(CHILD, "FOREIGN_KEYS", foreign_keys=(CASCADE,)), (KEYED, [insert(id=1, note="a")]))


def test_child_when_what_a_key_did_to_it_is_not_known_then_the_remedy_brings_its_rows(operator: Operator) -> None:
    """A value of the parent's key goes and comes back while a chunk of the child is on its way."""
    follow_a_parent(operator)
    operator.writer.cut(Event(CHILD, "DUMP_STARTED", dump="first"))
    floor = operator.writer.last_gsns["acme", "shop"]
    parent, moved = {"id": 1, "note": "a"}, {"id": 5, "note": "a"}
    operator.writer.cut((KEYED, [update(parent, moved), update(moved, parent)]))
    operator.writer.cut(Chunk(CHILD, [{"id": 10, "t": 1}], floor, dump="first"))
    message = operator.stopped("CASCADE_UNCERTAIN")
    assert commands(message) == [["sync", "resync", "shop", "shop.child"]]
    operator.resyncs(CHILD, [{"id": 10, "t": 1}, {"id": 11, "t": 1}])
    operator.equals(CHILD, {"id": 10, "t": 1}, {"id": 11, "t": 1})
    operator.writer.cut((KEYED, [delete(**parent)]))
    operator.equals(CHILD)


def test_child_when_its_parent_has_begun_anew_then_the_remedy_brings_its_rows(operator: Operator) -> None:
    follow_a_parent(operator)
    operator.writer.cut((CHILD, [insert(id=10, t=1)]))
    operator.follows()
    cut = operator.writer.cut((KEYED, [insert(id=7, note="lost")]))
    (file,) = (operator.writer.folder / "data/acme/shop/shop/t").glob(f"*-{cut:020d}-*")
    file.unlink()
    operator.writer.cut((CHILD, [insert(id=11, t=7)]))
    operator.follows()
    operator.resyncs(KEYED, [{"id": 1, "note": "a"}, {"id": 7, "note": "found"}])
    message = operator.stopped("PARENT_BEGUN_ANEW")
    assert commands(message) == [["sync", "resync", "shop", "shop.child"]]
    operator.resyncs(CHILD, [{"id": 10, "t": 1}, {"id": 11, "t": 7}])
    operator.writer.cut((KEYED, [delete(id=1, note="a")]))
    operator.equals(CHILD, {"id": 11, "t": 7})
    operator.equals(KEYED, {"id": 7, "note": "found"})
