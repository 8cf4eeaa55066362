"""Two sinks on one lake: the newer one stays, and the older one says which it is."""

import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from menura.stores.local import LocalStore
from menura.stores.store import OutcomeUnknown, Store
from pyspark.sql import SparkSession

from spark_sink.errors import LakeRecordsUnwritable, LakeTaken, OtherLanding, SinkError
from spark_sink.ingest.settings import SinkSettings
from spark_sink.lake.folder_rules import FolderRules
from spark_sink.lake.records import Records
from spark_sink.lake.table_folders import TableFolders, folders_by_rule, told_folders
from spark_sink.lake.writers import KEPT, WRITERS_FOLDER, LakeWriter
from spark_sink.reading import list_tables
from spark_sink.running import run
from spark_sink.work import TableId
from tests.spark_sink.landing import Table, Writer, insert, lake_rows, table_id
from tests.stack import wait_for

ORDERS = Table("orders", {"id": pa.int32()})


class Unsure(LocalStore):
    """Its first put is done, and nobody hears of it."""

    told = False

    def put_if_absent(self, path: str, document: bytes) -> bool:
        written = super().put_if_absent(path, document)
        if not self.told:
            self.told = True
            raise OutcomeUnknown(5, "no answer")
        return written


def numbers(lake: Path) -> list[int]:
    return sorted(int(path.stem) for path in (lake / WRITERS_FOLDER).iterdir())


def test_writer_when_a_newer_one_comes_then_it_stops_and_names_that_one(lake: Path) -> None:
    older, newer = LakeWriter(str(lake)), LakeWriter(str(lake))
    older.take()
    older.take()  # its query begins again
    older.check()
    newer.take()
    for look in (older.check, older.take):
        with pytest.raises(LakeTaken, match=f"process {os.getpid()} on .*, since "):
            look()
    newer.check()
    assert numbers(lake) == [1, 2]


def test_writers_when_they_come_at_once_then_each_gets_a_number_and_few_files_stay(lake: Path) -> None:
    writers = [LakeWriter(str(lake)) for _ in range(2 * KEPT)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(LakeWriter.take, writers))
    assert len({writer.number for writer in writers}) == 2 * KEPT
    assert numbers(lake)[-1] == max(writer.number for writer in writers)
    LakeWriter(str(lake)).take()
    assert len(numbers(lake)) == KEPT
    assert sum(_is_taken(writer) for writer in writers) == 2 * KEPT


def _is_taken(writer: LakeWriter) -> bool:
    try:
        writer.check()
    except LakeTaken:
        return True
    return False


def test_writer_when_its_put_is_not_answered_then_it_finds_its_number(lake: Path) -> None:
    store: Store = Unsure(lake)
    writer = LakeWriter(str(lake), lambda _url: store)
    writer.take()
    assert (writer.number, numbers(lake)) == (1, [1])
    writer.check()


def folders_of(lake: Path, rule: str, writer: LakeWriter | None = None) -> TableFolders:
    """As a sink with this rule has them, that has just begun."""
    check = writer.check if writer is not None else (lambda: None)
    return Records(str(lake), folder_rules=FolderRules.parse([rule]), check_owned=check).table_folders


def test_a_sink_when_a_newer_one_has_other_rules_then_it_gives_no_table_a_folder(lake: Path) -> None:
    older, newer = LakeWriter(str(lake)), LakeWriter(str(lake))
    older.take()
    former, following = folders_of(lake, "a/{table}", older), folders_of(lake, "b/{table}", newer)
    with told_folders(str(lake), {}):
        former.begin()
        newer.take()
        with pytest.raises(LakeTaken, match="a newer sink writes it"):
            former.assign([table_id(ORDERS)])
        following.begin()
        assert following.assign([table_id(ORDERS)]) == {}
    assert folders_by_rule(str(lake)) == {table_id(ORDERS): "b/orders"}


@pytest.mark.parametrize("is_taken", [False, True])
@pytest.mark.parametrize(("rule", "table"), [("b/{table}", "orders"), ("a/orders", "items")])
def test_a_sink_when_another_one_records_folders_before_its_own_then_the_first_ones_count_and_it_ends(
    lake: Path, monkeypatch: pytest.MonkeyPatch, rule: str, table: str, *, is_taken: bool
) -> None:
    """The same table in another folder, and another table in the same folder."""
    first, second = table_id(ORDERS), replace(table_id(ORDERS), table=table)
    older, newer = LakeWriter(str(lake)), LakeWriter(str(lake))
    newer.take()
    following, former = folders_of(lake, rule, newer), folders_of(lake, "a/{table}", older)
    real = TableFolders._append

    def append_last(self: TableFolders, given: Mapping[TableId, str]) -> None:
        monkeypatch.setattr(TableFolders, "_append", real)
        former.assign([first])  # this one's look was before the newer sink had begun
        if is_taken:
            LakeWriter(str(lake)).take()
        real(self, given)

    with told_folders(str(lake), {}):
        following.begin()
        former.begin()
        monkeypatch.setattr(TableFolders, "_append", append_last)
        with pytest.raises(LakeTaken if is_taken else LakeRecordsUnwritable):
            following.assign([second])
        following.begin()
        assert following.of_tasks == {first: "a/orders"}
    assert folders_by_rule(str(lake)) == {first: "a/orders"}


@pytest.mark.spark
def test_sink_when_another_one_starts_on_its_lake_then_it_ends_and_one_that_refuses_ends_nobody(
    session: SparkSession, writer: Writer, lake: Path, tmp_path: Path
) -> None:
    failures: list[SinkError] = []

    def follow(stop: threading.Event) -> None:
        try:
            run(session, SinkSettings(str(writer.folder), str(lake), str(tmp_path / "first"), 0.1), stop)
        except SinkError as failure:
            failures.append(failure)

    writer.cut((ORDERS, [insert(id=1)]))
    stop = threading.Event()
    older = threading.Thread(target=follow, args=(stop,))
    older.start()
    try:
        wait_for("the older sink's first batch", lambda: list_tables(str(lake)), seconds=300)
        other = Writer(tmp_path / "other")
        other.cut((ORDERS, [insert(id=9)]))
        refused = SinkSettings(str(other.folder), str(lake), str(tmp_path / "other checkpoint"), available_now=True)
        with pytest.raises(OtherLanding):
            run(session, refused, threading.Event())
        assert numbers(lake) == [1]
        assert older.is_alive()
        newer = SinkSettings(str(writer.folder), str(lake), str(tmp_path / "second"), available_now=True)
        run(session, newer, threading.Event())
        older.join(300)
        assert [type(failure) for failure in failures] == [LakeTaken]
        writer.cut((ORDERS, [insert(id=2)]))
        run(session, newer, threading.Event())
        assert [row["id"] for row in lake_rows(lake, ORDERS)] == [1, 2]
    finally:
        stop.set()
        older.join(60)
