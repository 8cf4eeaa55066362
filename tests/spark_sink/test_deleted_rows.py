"""Tables that keep deleted rows, beside a plain model in memory, with kills and replays on the way."""

import random
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from menura.landing import KeyNumbers, LandedRepair

from spark_sink.errors import TableNotInLake
from spark_sink.ingest.table_writer import merge_waiting
from spark_sink.lake.current_rows import SMALL_BYTES
from spark_sink.lake.delta_table import open_table, size_bytes
from spark_sink.lake.net_effect import COMMITTED_AT, IS_DELETED
from spark_sink.lake.table_options import OptionRules
from spark_sink.lake.tail import Waiting
from spark_sink.reading import current_state, row_count
from spark_sink.reading_at import LakeCut, TableAt
from spark_sink.work import Result
from tests.spark_sink.driver import Driver
from tests.spark_sink.landing import (
    COMMIT_US,
    Chunk,
    Event,
    Table,
    Verified,
    Writer,
    altered,
    apply_entries,
    delete,
    insert,
    lake_rows,
    table_id,
    truncate,
    update,
)
from tests.spark_sink.test_model import STEPS, Model, Run, Step, Unknown, check, play

KEEPS = OptionRules.parse(["soft_delete,commit_time"])
PLAIN = OptionRules()
TABLE = Table("t", {"id": pa.int32(), "a": pa.string()})
#: of changes, and of chunks
COMMITTED = {datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=COMMIT_US + more) for more in (0, 7)}
COMMITTED_FIRST = min(COMMITTED)
SOURCE = ("acme", "shop")


@dataclass
class Keeping(Model):
    """A model with the rows that were deleted, as they were last."""

    dead: dict[object, dict[str, object]] = field(default_factory=dict)

    def bury(self, before: list[dict[str, object]]) -> None:
        """What became of rows that were there before a change."""
        alive = {row["id"] for row in self.rows}
        self.dead |= {row["id"]: row for row in before if row["id"] not in alive}
        self.dead = {key: row for key, row in self.dead.items() if key not in alive}

    def do(self, step: Step, run: Run) -> None:
        before = list(self.rows)
        kind, one = step[:2]
        if kind in ("add", "rename", "drop", "retype"):
            self.rows = [*before, *self.dead.values()]
            play(self, run, step)
            self.dead = {row["id"]: row for row in self.rows[len(before) :]}
            self.rows = self.rows[: len(before)]
            return
        unknown = kind == "move" and self.find(one % 6) is None
        play(self, run, step)
        if unknown:  # it was there, though nobody knows how
            before.append(dict.fromkeys(self.columns, Unknown()) | {"id": one % 6})
        self.bury(before)
        if kind == "again":
            self.dead = {}


def deleted_rows(lake: Path, table: Table) -> dict[object, dict[str, object]]:
    found = current_state(str(lake), table_id(table), with_deleted=True).to_pylist()
    assert {row[COMMITTED_AT] for row in found} <= COMMITTED
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row for row in found if row[IS_DELETED]}


def check_deleted(model: Keeping, run: Run) -> None:
    try:
        found = deleted_rows(run.lake, model.table)
    except TableNotInLake:
        return
    assert found.keys() == model.dead.keys()
    for key, row in found.items():
        unknown = row["_absent"] or "[]"
        for name, value in model.dead[key].items():
            assert isinstance(value, Unknown) or f'"{name}"' in unknown or row[name] == value, name


@pytest.mark.long
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
def test_random_changes_when_deleted_rows_stay_then_living_and_deleted_ones_are_the_models(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory(prefix="menura-model-") as folder:
        model = Keeping(is_keyed=True)
        run = Run(Writer(Path(folder) / "landing"), Path(folder) / "lake", options=KEEPS)
        for step in steps:
            model.do(step, run)
            if run.applied == run.writer.entry and not run.batches:
                check(model, run)
                check_deleted(model, run)
        run.batches.append(altered(model.table))
        run.catch_up()
        check(model, run)
        check_deleted(model, run)


def follow(writer: Writer, lake: Path, first: int = 1, options: OptionRules = KEEPS) -> None:
    for outcome in apply_entries(writer.folder, lake, first=first, table_options=options):
        assert outcome.message == ""


def test_a_deleted_row_when_its_log_has_the_key_alone_then_stays_as_it_was_and_comes_back_with_an_insert(
    writer: Writer, lake: Path
) -> None:
    writer.cut((TABLE, [insert(id=1, a="x"), insert(id=2, a="y")]))
    follow(writer, lake)
    writer.cut((TABLE, [delete(id=1, _absent=("a",)), update({"id": 2, "a": "y"}, {"id": 3, "a": "y"})]))
    follow(writer, lake, 2)
    assert lake_rows(lake, TABLE) == [{"id": 3, "a": "y"}]
    assert {key: row["a"] for key, row in deleted_rows(lake, TABLE).items()} == {1: "x", 2: "y"}
    assert row_count(str(lake), table_id(TABLE)) == 1
    writer.cut((TABLE, [insert(id=1, a="z")]))
    follow(writer, lake, 3)
    assert lake_rows(lake, TABLE) == [{"id": 1, "a": "z"}, {"id": 3, "a": "y"}]
    assert deleted_rows(lake, TABLE).keys() == {2}


@pytest.mark.parametrize("apart", [True, False], ids=["apart", "together"])
def test_deleted_rows_when_the_table_is_truncated_dumped_and_repaired_then_those_that_it_lacks_stay_marked(
    writer: Writer, lake: Path, *, apart: bool
) -> None:
    def cut(*batches: object) -> None:
        writer.cut(*batches)
        if apart:
            follow(writer, lake, writer.entry)

    cut((TABLE, [insert(id=1, a="x"), insert(id=2, a="y")]), truncate(TABLE), (TABLE, [insert(id=2, a="z")]))
    cut((TABLE, [insert(id=3, a="stale"), insert(id=9, a="gone"), delete(id=9, a="gone"), insert(id=8, a="stale")]))
    cut(Event(TABLE, "DUMP_STARTED", dump="anew"))
    began, floor = writer.last_gsns[SOURCE] - 1, writer.last_gsns[SOURCE]
    cut((TABLE, [delete(id=2, a="z")]))
    cut(Chunk(TABLE, [{"id": 2, "a": "z"}, {"id": 3, "a": "read"}, {"id": 9, "a": "back"}], floor, dump="anew"))
    cut(Event(TABLE, "DUMPED", dump="anew", removes_rows_before_gsn=began))
    cut(Event(TABLE, "REPAIR_STARTED", dump="mend"))
    gsn = writer.last_gsns[SOURCE] - 1
    cut(Chunk(TABLE, [{"id": 1, "a": "mended"}], gsn, dump="mend", repairs=True))
    ranges = (KeyNumbers((), (1,)), KeyNumbers((8,), ()))
    cut(Event(TABLE, "REPAIRED", dump="mend", repaired=LandedRepair(gsn, ("id",), ranges)))
    if not apart:
        follow(writer, lake)
    assert lake_rows(lake, TABLE) == [{"id": 1, "a": "mended"}, {"id": 3, "a": "read"}]
    assert {key: row["a"] for key, row in deleted_rows(lake, TABLE).items()} == {2: "z", 8: "stale", 9: "back"}


def test_changes_that_wait_when_the_table_keeps_deleted_rows_then_readers_have_them_at_each_cut(
    writer: Writer, lake: Path
) -> None:
    waiting = Waiting(3600, -1, part_of_table=1e9)
    writer.cut((TABLE, [insert(id=1, a="x"), insert(id=2, a="y")]))
    apply_entries(writer.folder, lake, table_options=KEEPS)
    writer.cut((TABLE, [delete(id=1, _absent=("a",)), insert(id=3, a="z")]))
    (outcome,) = apply_entries(writer.folder, lake, first=2, waiting=waiting, table_options=KEEPS)
    assert outcome.merged_gsn
    assert lake_rows(lake, TABLE) == [{"id": 2, "a": "y"}, {"id": 3, "a": "z"}]
    assert {key: row["a"] for key, row in deleted_rows(lake, TABLE).items()} == {1: "x"}
    assert row_count(str(lake), table_id(TABLE)) == 2
    merged = merge_waiting(str(lake), table_id(TABLE))
    assert merged.changelog is not None and merged.current is not None
    at = LakeCut(str(lake), (), (TableAt(table_id(TABLE), merged.changelog, merged.current),))
    assert at.arrow(table_id(TABLE))["id"].to_pylist() == [2, 3]
    assert sorted(at.arrow(table_id(TABLE), with_deleted=True)["id"].to_pylist()) == [1, 2, 3]
    (statement,) = at.statements()
    assert statement.endswith(f"VERSION AS OF {merged.current} WHERE `{IS_DELETED}` IS NOT TRUE;")


@pytest.mark.parametrize("after", [PLAIN, OptionRules.parse(["commit_time"])], ids=["none", "other"])
def test_a_table_when_its_options_change_then_it_stops_until_it_begins_anew(
    writer: Writer, lake: Path, after: OptionRules
) -> None:
    writer.cut((TABLE, [insert(id=1, a="x"), delete(id=1, a="x")]))
    follow(writer, lake)
    writer.cut((TABLE, [insert(id=2, a="y")]))
    (stopped,) = apply_entries(writer.folder, lake, first=2, table_options=after)
    assert (stopped.result, stopped.code) == (Result.STOPPED, "TABLE_OPTIONS_CHANGED")
    assert "soft_delete,commit_time" in stopped.message and "menura sync resync shop shop.t" in stopped.message
    assert deleted_rows(lake, TABLE).keys() == {1} and lake_rows(lake, TABLE) == []
    writer.cut(Event(TABLE, "DUMP_STARTED", removes_rows=True, dump="anew"))  # as a stopped table takes it
    writer.cut(Chunk(TABLE, [{"id": 2, "a": "y"}], writer.last_gsns[SOURCE], dump="anew"))
    follow(writer, lake, 2, after)
    assert lake_rows(lake, TABLE) == [{"id": 2, "a": "y"}]
    names = current_state(str(lake), table_id(TABLE), with_deleted=True).column_names
    assert (IS_DELETED in names, COMMITTED_AT in names) == (False, after is not PLAIN)


def test_a_table_without_a_key_when_its_deleted_rows_shall_stay_then_it_alone_stops(writer: Writer, lake: Path) -> None:
    keyless = Table("k", TABLE.columns, key=())
    writer.cut((TABLE, [insert(id=1, a="x")]), (keyless, [insert(id=1, a="x"), delete(id=1, a="x")]))
    outcomes = {each.table.table: each for each in apply_entries(writer.folder, lake, table_options=KEEPS)}
    assert outcomes["t"].message == "" and outcomes["k"].code == "TABLE_OPTION_IMPOSSIBLE"
    rules = OptionRules.parse(["soft_delete", "acme/shop/shop.k=commit_time"])
    (after,) = (each for each in apply_entries(writer.folder, lake, table_options=rules) if each.table.table == "k")
    assert after.message == "" and lake_rows(lake, keyless) == []


@pytest.mark.parametrize("others", [0, 600], ids=["small", "merged"])
def test_deleted_rows_when_other_columns_become_the_key_then_are_gone(writer: Writer, lake: Path, others: int) -> None:
    chance = random.Random(7)
    filling = [{"id": number, "a": chance.randbytes(500).hex()} for number in range(1000, 1000 + others)]
    writer.cut(
        (TABLE, [insert(id=1, a="x"), insert(id=2, a="x"), delete(id=1, a="x"), *(insert(**row) for row in filling)])
    )
    follow(writer, lake)
    current = open_table(f"{table_id(TABLE).folder(str(lake))}/current")
    assert current is not None and (size_bytes(current) > SMALL_BYTES) is bool(others)
    other = Table("t", TABLE.columns, key=("a",))
    writer.cut(altered(other), (other, [update({"id": 2, "a": "x"}, {"id": 7, "a": "x"})]))
    follow(writer, lake, 2)
    assert lake_rows(lake, other) == sorted([{"id": 7, "a": "x"}, *filling], key=repr)
    assert current_state(str(lake), table_id(TABLE), with_deleted=True).num_rows == 1 + others


def test_a_row_when_it_was_deleted_in_a_dump_and_a_later_chunk_shows_it_again_then_lives(
    writer: Writer, lake: Path
) -> None:
    writer.cut((TABLE, [insert(id=1, a="x"), insert(id=2, a="y")]))
    writer.cut(Event(TABLE, "DUMP_STARTED", dump="anew"))
    began = writer.last_gsns[SOURCE] - 1
    writer.cut((TABLE, [delete(id=1, a="x"), delete(id=2, a="y")]))
    follow(writer, lake)
    assert deleted_rows(lake, TABLE).keys() == {1, 2}
    writer.cut(Chunk(TABLE, [{"id": 1, "a": "unlogged"}], writer.last_gsns[SOURCE], dump="anew"))
    writer.cut(Event(TABLE, "DUMPED", dump="anew", removes_rows_before_gsn=began))
    follow(writer, lake, 4)
    assert lake_rows(lake, TABLE) == [{"id": 1, "a": "unlogged"}] and deleted_rows(lake, TABLE).keys() == {2}


@pytest.mark.parametrize("taken", ["truncated", "dumped", "repaired"])
def test_a_deleted_row_when_what_lives_is_taken_away_later_then_keeps_the_time_of_its_own_deletion(
    writer: Writer, lake: Path, taken: str
) -> None:
    writer.cut((TABLE, [insert(id=1, a="x"), insert(id=2, a="y")]))
    writer.commit_us += 10
    writer.cut((TABLE, [delete(id=1, a="x")]))
    deleted_gsn = writer.last_gsns[SOURCE] - 1
    writer.commit_us += 10
    if taken == "truncated":
        writer.cut(truncate(TABLE))
    elif taken == "dumped":
        writer.cut(Event(TABLE, "DUMP_STARTED", dump="anew"))
        writer.cut(Event(TABLE, "DUMPED", dump="anew", removes_rows_before_gsn=writer.last_gsns[SOURCE]))
    else:
        writer.cut(Event(TABLE, "REPAIR_STARTED", dump="mend"))
        gsn = writer.last_gsns[SOURCE]
        writer.cut(Event(TABLE, "REPAIRED", dump="mend", repaired=LandedRepair(gsn, ("id",), (KeyNumbers((), ()),))))
    follow(writer, lake)
    found = {row["id"]: row for row in current_state(str(lake), table_id(TABLE), with_deleted=True).to_pylist()}
    times = {key: (row[COMMITTED_AT] - COMMITTED_FIRST) // timedelta(microseconds=1) for key, row in found.items()}
    assert times == {1: 10, 2: 20} and found[1]["_gsn"] == deleted_gsn < found[2]["_gsn"]
    assert all(row[IS_DELETED] for row in found.values())


def test_a_verification_of_a_table_that_keeps_deleted_rows_then_compares_the_living_ones(
    writer: Writer, lake: Path
) -> None:
    driver = Driver(writer, lake)
    driver.table_options = KEEPS
    writer.cut((TABLE, [insert(id=1, a="x"), insert(id=2, a="y")]))
    driver.follow()
    writer.cut((TABLE, [delete(id=1, a="x")]))
    writer.cut(Event(TABLE, "VERIFICATION_STARTED", dump="verification-1"))
    gsn = writer.last_gsns[SOURCE]
    writer.cut((TABLE, [delete(id=2, a="y")]))
    writer.cut(Verified(TABLE, [{"id": 2, "a": "y"}], gsn))
    writer.cut(Event(TABLE, "VERIFIED", dump="verification-1"))
    driver.follow()
    found = driver.verdict()
    driver.verifications.stop(60)
    assert (found["verdict"], found["reason"]) == ("equal", "")
    assert deleted_rows(lake, TABLE).keys() == {1, 2}


@pytest.mark.parametrize("words", ["soft_delete,", "soft-delete", "acme/*=", "none,soft_delete"])
def test_options_when_a_word_is_none_then_are_refused_with_it(words: str) -> None:
    with pytest.raises(ValueError, match="none of soft_delete, commit_time, change_feed, none"):
        OptionRules.parse([words])
