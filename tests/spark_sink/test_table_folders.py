"""Where tables are in the lake: by rules, once and for ever; who reads finds them by their source's names."""

import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from menura.landing import LandedForeignKey
from menura.views.definition import InputName

from spark_sink.errors import LakeTableLost
from spark_sink.history import history
from spark_sink.ingest.cut_log_source import entry_rows
from spark_sink.ingest.table_writer import merge_waiting
from spark_sink.ingest.verifications import Verifications
from spark_sink.lake.delta_table import open_table
from spark_sink.lake.digests import SUSPECTED
from spark_sink.lake.folder_rules import FolderRules
from spark_sink.lake.recorded import lost_tables, recorded_tables
from spark_sink.lake.records import Records
from spark_sink.lake.table_folders import TableFolders, folders_by_rule, table_folder, told_folders
from spark_sink.lake.table_options import PLAIN_TABLES
from spark_sink.lake.tail import AT_ONCE, Waiting
from spark_sink.lake.validation_records import DUE
from spark_sink.lake_command import main
from spark_sink.landed.landing_log import LandingLog
from spark_sink.reading import changelog, current_state, list_tables, row_count
from spark_sink.reading_at import lake_at
from spark_sink.trace import trace
from spark_sink.views.inputs import InputAt, OpenInput
from spark_sink.work import CutSeen, EventSeen, Outcome, Result, TableId, split_rows
from tests.spark_sink.landing import (
    Event,
    Table,
    Verified,
    Writer,
    apply_entries,
    delete,
    insert,
    lake_rows,
    table_id,
    update,
)

ORDERS = Table("orders", {"id": pa.int32(), "note": pa.string()})
ITEMS = Table("items", {"id": pa.int32(), "note": pa.string()})
ROWS = [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}]
BY_SOURCE = "{database}/{source}-{table}"


class Sinking:
    """A sink that is started anew with each batch, without Spark."""

    def __init__(self, writer: Writer, lake: Path) -> None:
        self.writer, self.lake = writer, lake
        self.entry = 0
        self.options = PLAIN_TABLES
        self.verifications = Verifications(str(lake))

    def follow(self, *rules: str, waiting: Waiting = AT_ONCE, first: int | None = None) -> list[Outcome]:
        """Bring the lake to the log's end, as one batch; from an entry of before: as without a checkpoint."""
        log = LandingLog(str(self.writer.folder))
        first, last = first or self.entry + 1, log.last_entry(self.entry)
        known, _ = split_rows([row for n in range(first, last + 1) for row in entry_rows(log.read_entry(n))])
        records = Records(str(self.lake), folder_rules=FolderRules.parse(rules))
        with told_folders(str(self.lake), {}):
            records.table_folders.begin()
            outcomes = apply_entries(
                self.writer.folder,
                self.lake,
                first=first,
                last=last,
                waiting=waiting,
                table_options=self.options,
                folders=records.table_folders,
            )
            events = [each for each in known if isinstance(each, EventSeen)]
            records.record_events(events)
            records.record_batch([each for each in known if isinstance(each, CutSeen)], outcomes, whole=True)
        self.verifications.note(outcomes, events)
        self.entry = last
        return outcomes

    @property
    def folders(self) -> list[str]:
        """Those that hold tables."""
        logs = [log for kind in ("changelog", "current") for log in self.lake.rglob(f"{kind}/_delta_log")]
        return sorted({str(log.parents[1].relative_to(self.lake)) for log in logs})


@pytest.fixture
def sinking(writer: Writer, lake: Path) -> Sinking:
    return Sinking(writer, lake)


def refusals(outcomes: Sequence[Outcome]) -> dict[TableId, str]:
    return {each.table: each.message for each in outcomes if each.code == "TABLE_FOLDER_REFUSED"}


def test_tables_when_a_rule_names_their_folders_then_whatever_reads_finds_them_by_their_sources_names(
    sinking: Sinking, lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for source in ("east", "west"):
        sinking.writer.cut((ORDERS, [insert(**row) for row in ROWS]), source=source)
    outcomes = sinking.follow(BY_SOURCE)
    assert all(outcome.result is Result.APPLIED for outcome in outcomes)
    assert sinking.folders == ["shop/east-orders", "shop/west-orders"]
    sinking.writer.cut((ORDERS, [update(ROWS[1], {"id": 2, "note": "c"})]), source="east")
    sinking.follow(BY_SOURCE, waiting=Waiting(3600, -1, part_of_table=1e9))

    east, west = (table_id(ORDERS, source=source) for source in ("east", "west"))
    assert list_tables(str(lake)) == [east, west]
    after = [ROWS[0], {"id": 2, "note": "c"}]
    assert lake_rows(lake, ORDERS, source="east") == after and lake_rows(lake, ORDERS, source="west") == ROWS
    assert current_state(str(lake), east, cut=1).select(["id", "note"]).to_pylist() == ROWS
    as_input = OpenInput(str(lake), InputAt(InputName("east", "shop", "orders"), east, 1, 1))
    assert as_input.changelog.version() == 1 and as_input.rows.count() == 2
    assert row_count(str(lake), east) == 2 and changelog(str(lake), east).num_rows == 4
    assert history(str(lake), east).num_rows == 3
    assert merge_waiting(str(lake), east).changed
    traced = trace(str(lake), east, ("2",), str(sinking.writer.folder))
    assert [change.kind for change in traced.changes] == ["insert", "update"] and not traced.notes
    at = lake_at(
        str(lake), groups=[("acme", "east"), ("acme", "west")], cuts={("acme", "east"): 1, ("acme", "west"): 1}
    )
    assert [at.arrow(each.table).num_rows for each in at.tables] == [2, 2]
    for source, statement in zip(("east", "west"), at.statements(), strict=True):
        assert f"VIEW `{source}-orders` " in statement and f"{lake}/shop/{source}-orders/current" in statement
    monkeypatch.setattr(
        "sys.argv", ["menura lake", "at", "newest", "acme/west", "--lake", str(lake), "--format", "json"]
    )
    assert main() == 0
    (shown,) = json.loads(capsys.readouterr().out)["tables"]
    assert (shown["folder"], shown["source"]) == (f"{lake}/shop/west-orders", "west")

    cuts = recorded_tables(open_table(Records(str(lake)).cuts_folder))
    assert lost_tables(str(lake), cuts) == {}
    shutil.rmtree(lake / "shop/west-orders/current")
    assert isinstance(lost_tables(str(lake), cuts)[west], LakeTableLost)


def test_a_verification_when_a_rule_names_the_tables_folder_then_compares_what_is_there(sinking: Sinking) -> None:
    sinking.writer.cut((ORDERS, [insert(**row) for row in ROWS]))
    sinking.follow(BY_SOURCE)
    sinking.verifications.start()
    for verification in ("verification-1", "verification-2"):
        sinking.writer.cut(Event(ORDERS, "VERIFICATION_STARTED", dump=verification))
        gsn = sinking.writer.last_gsns["acme", "shop"]
        sinking.writer.cut(Verified(ORDERS, ROWS, gsn, None, None, verification))
        sinking.writer.cut(Event(ORDERS, "VERIFIED", dump=verification))
        sinking.follow(BY_SOURCE)
        DeltaTable(f"{sinking.lake}/shop/shop-orders/current").update({"note": "'other'"}, predicate="id = 2")
    sinking.verifications.stop(60, finish=True)
    rows = [row for row in sinking.verifications.records.rows() if row["chunk"] is None and row["verdict"] != DUE]
    found = {row["verification"]: (row["verdict"], row["reason"]) for row in rows}
    assert found == {"verification-1": ("equal", ""), "verification-2": ("unknown", SUSPECTED)}


def test_tables_when_rules_change_then_stay_where_they_are_and_new_ones_follow(
    sinking: Sinking, lake: Path, caplog: pytest.LogCaptureFixture
) -> None:
    later = [replace(ORDERS, name=f"orders_{number}") for number in range(3)]
    for rules, new in (([], later[0]), ([BY_SOURCE], later[1]), (["by_name/{table}"], later[2])):
        sinking.writer.cut(
            (ORDERS, [insert(id=len(rules) * 10 + later.index(new), note="x")]), (new, [insert(**ROWS[0])])
        )
        with caplog.at_level(logging.WARNING, "menura.sink"):
            sinking.follow(*rules)
    sinking.writer.cut((ORDERS, [insert(**ROWS[0])]), *((table, [insert(**ROWS[1])]) for table in later))
    sinking.follow()
    assert sinking.folders == [
        "acme/shop/shop/orders",
        "acme/shop/shop/orders_0",
        "by_name/orders_2",
        "shop/shop-orders_1",
    ]
    assert [lake_rows(lake, table) for table in later] == [ROWS] * 3 and len(lake_rows(lake, ORDERS)) == 4
    told = [record.getMessage() for record in caplog.records]
    assert [said.split("tables=")[1][0] for said in told] == ["2", "3"], told
    assert "acme/shop: shop.orders in acme/shop/shop/orders" in told[0]


def test_two_tables_when_a_rule_gives_them_one_folder_then_the_second_stops_before_it_is_written(
    sinking: Sinking, lake: Path
) -> None:
    for source in ("east", "west"):
        sinking.writer.cut((ORDERS, [insert(**ROWS[0])]), source=source)
    (east, west) = (table_id(ORDERS, source=source) for source in ("east", "west"))
    (message,) = refusals(sinking.follow("{database}/{table}")).values()
    assert "shop/orders" in message and f"is that of {east}" in message
    assert sinking.folders == ["shop/orders"] and lake_rows(lake, ORDERS, source="east") == ROWS[:1]
    assert list_tables(str(lake)) == [east, west]
    assert set(refusals(sinking.follow("{database}/{table}", first=1))) == {west}  # as it is tried again
    assert refusals(sinking.follow("{database}/{table}", ".*/west/.*={table}_west", first=1)) == {}
    assert sinking.folders == ["orders_west", "shop/orders"] and lake_rows(lake, ORDERS, source="west") == ROWS[:1]


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (".*[.]b={table}x", ""),
        (".*[.]b=first/Table", "is that of"),
        (".*[.]b=first/table/changelog", "lies in it"),
        (".*[.]b=first", "holds it"),
        (".*[.]b=ACME/shop/shop/items", "is that of"),
        (".*[.]b=acme/shop", "holds it"),
        (".*[.]b=left/behind", "holds files"),
        (".*[.](?P<none>x?)b=tables/{none}", "empty"),
        (".*[.]b=a/{table}", ""),
    ],
)
def test_a_new_table_when_its_folder_would_meet_another_ones_then_it_alone_stops(
    sinking: Sinking, lake: Path, rule: str, why: str
) -> None:
    sinking.writer.cut((replace(ORDERS, name="a"), [insert(**ROWS[0])]), (ITEMS, [insert(**ROWS[0])]))
    sinking.follow(".*[.]a=first/table")
    (lake / "left/behind/deep").mkdir(parents=True)
    (lake / "left/behind/deep/file").write_text("somebody's")
    before = sinking.folders
    sinking.writer.cut((replace(ORDERS, name="b"), [insert(**ROWS[0])]), (ITEMS, [insert(**ROWS[1])]))
    found = refusals(sinking.follow(rule))
    assert lake_rows(lake, ITEMS) == ROWS
    assert [why in message for message in found.values()] == ([True] if why else [])
    assert (sinking.folders == before) is bool(why)


@pytest.mark.parametrize(
    "name", ["acme/shop/shop/items", "acme/shop/Shop/Items", "acme/shop/shop/items/more", "acme/shop"]
)
def test_a_new_table_without_a_rule_when_its_folder_is_another_ones_by_rule_then_stops(
    sinking: Sinking, name: str
) -> None:
    sinking.writer.cut((ORDERS, [insert(**ROWS[0])]))
    sinking.follow(f".*orders={name}")
    sinking.writer.cut((ITEMS, [insert(**ROWS[0])]))
    assert set(refusals(sinking.follow())) == {table_id(ITEMS)}
    assert sinking.folders == [name]


PATHS = ["..", ".", "../../etc", "/etc/passwd", "_menura", "_delta_log", ".hidden", "a\\b"]
HOSTILE = [*PATHS, "x\n", "x\x00y", "%2e%2e", "~2E", "ünïcode", "x" * 400, "{table}", "a=b", " ", "*"]


def test_names_when_they_are_hostile_then_folders_lie_in_the_lake_and_differ() -> None:
    rules = FolderRules.parse(["{database}/{table}", r".*/(?P<all>.*)=x-{all}"])
    for chosen in (FolderRules(rules.rules[:1]), rules):
        folders = [chosen.folder_of(TableId("acme", "shop", name, other)) for name in HOSTILE for other in HOSTILE]
        assert len({folder.lower() for folder in folders}) == len(HOSTILE) ** 2 or chosen is rules
        segments = [segment for folder in folders for segment in folder.split("/")]
        assert all(segment and segment[0] not in "._" and len(segment) < 256 for segment in segments)
        assert all(sign.isascii() and sign.isprintable() and sign not in "%\\" for sign in "".join(segments))


def test_tables_with_hostile_names_when_a_rule_names_their_folders_then_each_is_followed(
    sinking: Sinking, lake: Path
) -> None:
    tables = [replace(ORDERS, name=name, database=name) for name in ("../..", "_menura", "x\n", "ü" * 60)]
    sinking.writer.cut(*((table, [insert(**ROWS[0])]) for table in tables))
    assert refusals(sinking.follow("{database}/{table}")) == {}
    assert [lake_rows(lake, table) for table in tables] == [ROWS[:1]] * 4 and len(sinking.folders) == 4
    assert sorted(path.name for path in lake.parent.iterdir()) == ["lake", "landing"]


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("(=x", "missing )"),
        ("(.*)={table}", "unnamed groups"),
        ("(?P<table>.*)={table}", "the table's own word"),
        (".*={nobody}", "{nobody}"),
        (".*=../{table}", "'..'"),
        (".*=_menura/{table}", "'_menura'"),
        (".*=/{table}", "''"),
        (".*={table}/", "''"),
        (".*=", "''"),
        (".*={table", "'{table'"),
        (".*=a b", "'a b'"),
        (".*=a~2Fb", "'a~2Fb'"),
        ("1/2/3/4/5/6/7/8/9", "9 segments"),
    ],
)
def test_rules_when_a_word_is_none_then_are_refused_with_it(rule: str, why: str) -> None:
    with pytest.raises(ValueError) as found:
        FolderRules.parse([rule])
    assert why in str(found.value) and rule in str(found.value)


def test_a_rule_when_a_name_would_take_others_for_ever_then_takes_a_moment() -> None:
    rules = FolderRules.parse([r".*/((?P<a>(x+x+)+)y)".replace("((", "(?:(").replace("(x+x+)", "(?:x+x+)") + "={a}"])
    table = TableId("acme", "shop", "shop", "x" * 5000)
    assert rules.folder_of(table) == table.default_folder


def test_a_killed_sinks_table_when_it_is_not_recorded_then_stays_where_it_is(sinking: Sinking, lake: Path) -> None:
    sinking.writer.cut((ORDERS, [insert(**ROWS[0])]))
    apply_entries(sinking.writer.folder, lake)  # and no record is written
    sinking.follow(BY_SOURCE)
    sinking.writer.cut((ORDERS, [insert(**ROWS[1])]))
    sinking.follow(BY_SOURCE)
    assert sinking.folders == ["acme/shop/shop/orders"] and lake_rows(lake, ORDERS) == ROWS


def test_a_folder_when_the_sink_is_killed_before_it_writes_there_then_is_the_tables_whatever_rules_say_later(
    sinking: Sinking, lake: Path
) -> None:
    sinking.writer.cut((ORDERS, [insert(**ROWS[0])]))
    records = Records(str(lake), folder_rules=FolderRules.parse([BY_SOURCE]))
    with told_folders(str(lake), {}):
        assert records.table_folders.assign([table_id(ORDERS)]) == {}
    sinking.follow("other/{table}")
    assert sinking.folders == ["shop/shop-orders"] and lake_rows(lake, ORDERS) == ROWS[:1]


def test_a_child_when_it_and_its_parent_are_new_then_follows_the_parent_in_its_folder(
    sinking: Sinking, lake: Path
) -> None:
    child = Table("child", {"id": pa.int32(), "parent": pa.int32()})
    key = LandedForeignKey("child_parent", ("parent",), ("shop", "orders"), ("id",), "cascade", "cascade", (None,))
    keys = Event(child, "FOREIGN_KEYS", foreign_keys=(key,))
    sinking.writer.cut((ORDERS, [insert(**row) for row in ROWS]))
    sinking.writer.cut(keys, (child, [insert(id=number, parent=number) for number in (1, 2)]))
    sinking.writer.cut((ORDERS, [delete(**ROWS[0])]))
    assert all(each.result is Result.APPLIED for each in sinking.follow(BY_SOURCE))
    assert sinking.folders == ["shop/shop-child", "shop/shop-orders"]
    assert lake_rows(lake, child) == [{"id": 2, "parent": 2}]


def test_a_new_child_when_its_parent_has_stopped_then_gets_the_folder_of_its_rule_later(
    sinking: Sinking, lake: Path
) -> None:
    child = Table("child", {"id": pa.int32(), "parent": pa.int32()})
    key = LandedForeignKey("child_parent", ("parent",), ("shop", "orders"), ("id",), "cascade", "cascade", (None,))
    sinking.writer.cut((ORDERS, [insert(**ROWS[0])]))
    sinking.follow(BY_SOURCE)
    landed = set(sinking.writer.folder.rglob("*.parquet"))
    keys = Event(child, "FOREIGN_KEYS", foreign_keys=(key,))
    sinking.writer.cut(keys, (ORDERS, [insert(**ROWS[1])]))
    (file,) = set(sinking.writer.folder.rglob("*.parquet")) - landed
    whole = file.read_bytes()
    file.unlink()
    sinking.writer.cut((child, [insert(id=1, parent=1)]))
    codes = {each.table: each.code for each in sinking.follow(BY_SOURCE)}
    assert codes == {table_id(ORDERS): "DATA_FILE_UNREADABLE", table_id(child): "PARENT_STOPPED"}
    file.write_bytes(whole)
    sinking.follow(BY_SOURCE, first=2)
    assert sinking.folders == ["shop/shop-child", "shop/shop-orders"]
    assert lake_rows(lake, child) == [{"id": 1, "parent": 1}]


def test_new_tables_when_the_rules_are_gone_then_are_where_tables_are_by_default(sinking: Sinking, lake: Path) -> None:
    sinking.writer.cut((ORDERS, [insert(**ROWS[0])]))
    sinking.follow(BY_SOURCE)
    sinking.writer.cut((ITEMS, [insert(**ROWS[1])]))
    (outcome,) = sinking.follow()
    assert outcome.result is Result.APPLIED
    assert sinking.folders == ["acme/shop/shop/items", "shop/shop-orders"]
    assert list_tables(str(lake)) == [table_id(ITEMS), table_id(ORDERS)]


def test_a_lake_without_rules_when_it_is_read_then_its_record_has_no_folders(sinking: Sinking, lake: Path) -> None:
    sinking.writer.cut((ORDERS, [insert(**ROWS[0])]))
    sinking.follow()
    record = open_table(f"{lake}/_menura/tables")
    assert record is not None and "folder" not in pa.schema(record.schema()).names
    assert folders_by_rule(str(lake)) == {} and TableFolders(str(lake), "", FolderRules()).of_tasks is None
    assert table_folder(str(lake), table_id(ORDERS)) == f"{lake}/acme/shop/shop/orders"
