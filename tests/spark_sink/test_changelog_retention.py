"""Changelogs that keep so much and no more: what is cut off, what never is, and what a reader is told."""

from pathlib import Path

import pyarrow as pa
import pytest

from spark_sink.errors import ChangelogShortened
from spark_sink.ingest import table_task
from spark_sink.lake import changelog as changelog_files
from spark_sink.lake import changelog_retention
from spark_sink.lake.changelog_retention import HOUR_US, MOST_MARKS, KeepRules, Kept
from spark_sink.reading import changelog, changelog_begins
from tests.spark_sink.killing import Killed, kill_at
from tests.spark_sink.landing import Chunk, Event, Table, Writer, apply_entries, insert, lake_rows, table_id, update

ORDERS = Table("orders", {"id": pa.int32(), "v": pa.int32()})
AT_US = 1_800_000_000_000_000


@pytest.fixture(autouse=True)
def hours(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The clock, which the test moves; each batch is a table's turn. When files are compacted depends on the folder's
    name: here they never are, so each has the rows of one batch.
    """
    now = [0]
    monkeypatch.setattr(table_task, "now_us", lambda: AT_US + now[0] * HOUR_US)
    monkeypatch.setattr(table_task, "is_due", lambda folder, before, after: folder.endswith("changelog"))
    monkeypatch.setattr(table_task, "clean", lambda folder, hours: 0)
    monkeypatch.setattr(changelog_files, "compact_when_due", lambda table: None)
    return now


def follow(writer: Writer, lake: Path, word: str, keep_hours: int = 1) -> None:
    (outcome,) = apply_entries(
        writer.folder, lake, first=writer.entry, keep_hours=keep_hours, keep_changelogs=KeepRules.parse([word])
    )
    assert (outcome.message, outcome.unclean) == ("", "")


def numbers(lake: Path) -> list[int]:
    return sorted(changelog(str(lake), table_id(ORDERS))["_gsn"].to_pylist())


def change(writer: Writer, number: int) -> int:
    writer.cut((ORDERS, [update({"id": 1, "v": number}, {"id": 1, "v": number + 1})]))
    return writer.last_gsns["acme", "shop"]


@pytest.mark.parametrize("word", ["5h", "acme/shop/shop.*=1rows"])
def test_changelog_when_changes_are_old_enough_then_they_go_and_who_asks_for_them_is_told(
    writer: Writer, lake: Path, hours: list[int], word: str
) -> None:
    writer.cut((ORDERS, [insert(id=1, v=0)]))
    follow(writer, lake, word, keep_hours=5)
    assert changelog_begins(str(lake), table_id(ORDERS)) == 0
    last = 0
    for number in range(6):
        hours[0] += 1
        last = change(writer, number)
        follow(writer, lake, word, keep_hours=5)
    begins = changelog_begins(str(lake), table_id(ORDERS))
    assert 0 < begins <= min(numbers(lake))
    assert last - begins > 5  # what came within the last five hours is there
    assert lake_rows(lake, ORDERS) == [{"id": 1, "v": 6}]
    with pytest.raises(ChangelogShortened, match=f"from {begins} on"):
        changelog(str(lake), table_id(ORDERS), above_gsn=begins - 2)
    assert changelog(str(lake), table_id(ORDERS), above_gsn=begins - 1).num_rows == len(numbers(lake))


def test_changelog_when_a_dump_is_open_then_what_came_since_it_began_stays_until_its_end(
    writer: Writer, lake: Path, hours: list[int]
) -> None:
    writer.cut((ORDERS, [insert(id=1, v=0)]))
    follow(writer, lake, "1h")
    writer.cut(Event(ORDERS, "DUMP_STARTED", dump="d"), (ORDERS, [insert(id=3, v=0)]))
    floor = writer.last_gsns["acme", "shop"]
    follow(writer, lake, "1h")
    for number in range(3):
        hours[0] += 9
        change(writer, number)
        follow(writer, lake, "1h")
    assert changelog_begins(str(lake), table_id(ORDERS)) < floor
    writer.cut(Chunk(ORDERS, [{"id": 1, "v": 0}, {"id": 2, "v": 9}], floor, dump="d"))
    follow(writer, lake, "1h")
    writer.cut(Event(ORDERS, "DUMPED", dump="d", removes_rows_before_gsn=floor - 1))
    hours[0] += 9
    follow(writer, lake, "1h")
    hours[0] += 9
    change(writer, 3)
    follow(writer, lake, "1h")
    assert changelog_begins(str(lake), table_id(ORDERS)) > floor
    assert lake_rows(lake, ORDERS) == [{"id": 1, "v": 4}, {"id": 2, "v": 9}, {"id": 3, "v": 0}]
    writer.cut(Chunk(ORDERS, [{"id": 1, "v": 0}], floor, dump="late"))
    (late,) = apply_entries(writer.folder, lake, first=writer.entry)
    assert late.code == "CHUNK_TOO_LATE"


def test_shortening_when_it_is_killed_then_no_more_is_promised_than_is_there(
    writer: Writer, lake: Path, hours: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.cut((ORDERS, [insert(id=1, v=0)]))
    follow(writer, lake, "1h")
    hours[0] += 9
    change(writer, 0)
    with monkeypatch.context() as patched:
        kill_at(patched, changelog_retention, "write_kept", 1)
        with pytest.raises(Killed):
            follow(writer, lake, "1h")
    assert changelog_begins(str(lake), table_id(ORDERS)) <= min(numbers(lake))
    hours[0] += 9
    change(writer, 1)
    follow(writer, lake, "1h")
    assert 0 < changelog_begins(str(lake), table_id(ORDERS)) <= min(numbers(lake))


def test_marks_when_there_are_many_then_they_are_few_and_span_all_and_those_of_a_clock_that_was_ahead_go() -> None:
    kept = Kept().marked(AT_US * 2, 1)
    for number in range(1, 200):
        kept = kept.marked(AT_US + number, number)
    assert len(kept.marks) <= MOST_MARKS
    assert (kept.marks[0], kept.marks[-1]) == ((AT_US + 1, 1), (AT_US + 199, 199))
    assert kept.before(AT_US) == 0
    assert 90 < kept.before(AT_US + 100) <= 100


@pytest.mark.parametrize("word", ["", "5", "x=0h", "x=-1rows", "x=ever"])
def test_rule_when_it_names_no_limit_then_it_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="ends neither"):
        KeepRules.parse([word])
