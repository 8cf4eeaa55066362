"""What `menura tail` shows."""

import io
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from spark_sink import tail_command
from spark_sink.export.console import ConsoleOutput, Filter
from spark_sink.export.feed import Feed
from spark_sink.export.fields import readable
from spark_sink.lake.changelog_retention import Kept, write_kept
from tests.spark_sink.landing import Chunk, Event, Table, Writer, delete, insert, table_id, truncate, update
from tests.spark_sink.test_export import Lake

VISITS = Table("visits", {"id": pa.int32(), "at": pa.timestamp("us"), "note": pa.string(), "data": pa.binary()})
AT = "2023-11-14 22:13:20.000"


@pytest.fixture
def held(writer: Writer, lake: Path) -> Lake:
    return Lake(writer, lake)


def row(number: int, note: str | None) -> dict[str, object]:
    at = datetime.fromtimestamp(1_700_000_000, UTC).replace(tzinfo=None)
    return {"id": number, "at": at, "note": note, "data": b"\x00\xff"}


def shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], held: Lake, *more: str, code: int = 0
) -> list[str]:
    where = ["acme/shop/shop/visits", "--lake", str(held.folder), "--once"]
    monkeypatch.setattr("sys.argv", ["menura tail", *where, *more])
    assert tail_command.main() == code
    return capsys.readouterr().out.splitlines()


def test_changes_when_they_are_shown_then_each_is_a_line_of_what_differs(
    held: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held.cut((VISITS, [insert(**row(1, "a")), update(row(1, "a"), row(1, None)), delete(**row(1, None))]))
    held.cut(truncate(VISITS), (VISITS, [insert(**row(2, "two\x1b[2J"))]))
    lines = [
        f"{AT} c id=1 at=2023-11-14T22:13:20 note=a data=0x00ff",
        f"{AT} u id=1 note: a → NULL",
        f"{AT} d id=1 at=2023-11-14T22:13:20 note=NULL data=0x00ff",
        f"{AT} t all rows are gone",
        f"{AT} c id=2 at=2023-11-14T22:13:20 note=two [2J data=0x00ff",
    ]
    assert shown(monkeypatch, capsys, held) == lines
    assert shown(monkeypatch, capsys, held, "--last", "2") == lines[-2:]
    assert shown(monkeypatch, capsys, held, "--last", "0") == []
    assert shown(monkeypatch, capsys, held, "--op", "ud") == lines[1:3]
    assert shown(monkeypatch, capsys, held, "--where", "id=1", "--where", "note=NULL") == lines[1:3]
    assert shown(monkeypatch, capsys, held, "--op", "t", "--color", "always") == [
        f"\x1b[2m{AT}\x1b[0m \x1b[35mt all rows are gone\x1b[0m"
    ]


def test_changes_when_the_changelog_was_shortened_then_those_that_are_left_are_shown(
    held: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held.cut((VISITS, [insert(**row(1, "a")), insert(**row(2, "a"))]))
    changelog = held.changelog(table_id(VISITS))
    write_kept(changelog, Kept(begins_gsn=2))
    changelog.delete("_gsn < 2")
    held.cut((VISITS, [insert(**row(3, "a"))]))
    found = shown(monkeypatch, capsys, held)
    assert [line.split()[3] for line in found] == ["id=2", "id=3"]


def test_changes_when_a_dump_has_brought_rows_of_one_number_then_as_many_as_asked_for_are_shown(
    held: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held.cut(Event(VISITS, "DUMP_STARTED", dump="dump-1"))
    floor = held.writer.last_gsns["acme", "shop"]
    held.cut(Chunk(VISITS, [row(number, "a") for number in range(5)], floor))
    assert len(shown(monkeypatch, capsys, held)) == 5
    assert len(shown(monkeypatch, capsys, held, "--last", "2")) == 2
    feed = Feed(str(held.folder), [table_id(VISITS)], fields=readable, removals=False)
    feed.position = feed.newest(2)
    held.cut(Chunk(VISITS, [row(5, "a")], floor, range=1), (VISITS, [insert(**row(6, "a"))]))
    step = feed.next()
    assert step is not None
    found = [message.value["after"]["id"] for _, message in step.messages() if message.value]
    assert found[-1] == "6" and len(found) == 3
    feed.position = step.position
    assert feed.next() is None


@pytest.mark.parametrize("wrong", [("--op", "x"), ("--where", "id"), ("--last", "-1")])
def test_arguments_when_they_can_not_be_read_then_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: tuple[str, str]
) -> None:
    monkeypatch.setattr("sys.argv", ["menura tail", "acme/shop", "--lake", "nowhere", *wrong])
    with pytest.raises(SystemExit):
        tail_command.main()
    assert wrong[0] in capsys.readouterr().err


def test_lines_when_the_terminal_is_narrow_then_none_is_wider(held: Lake) -> None:
    held.cut((VISITS, [insert(**row(1, "long " * 50))]))
    stream = io.StringIO()
    output = ConsoleOutput(stream, Filter(), colours=False, width=80, with_table=True)
    step = Feed(str(held.folder), [table_id(VISITS)], fields=readable).next()
    assert step is not None
    output.write(step)
    (line,) = stream.getvalue().splitlines()
    assert len(line) == 80 and line.startswith(f"{AT} c shop.visits id=1") and line.endswith("…")
