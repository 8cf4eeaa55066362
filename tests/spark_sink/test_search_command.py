"""`menura search` from its arguments to what it prints and its exit code."""

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_sink import search_command
from spark_sink.errors import LakeStorageFailed, SearchIndexFailed
from spark_sink.search.index import IndexWriter, open_index, taking
from tests.spark_sink.landing import Workload, Writer, delete, insert
from tests.spark_sink.test_export import DOTTED, ID, ORDERS, Lake, row

NAME = ID.default_folder


@pytest.fixture
def held(writer: Writer, lake: Path) -> Lake:
    found = Lake(writer, lake)
    found.cut((ORDERS, [insert(**row(number, f"note {number % 3}")) for number in range(9)]))
    return found


class Command:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *where: str) -> None:
        """`where`: the option that says where indexes are."""
        self._monkeypatch, self._capsys, self.where = monkeypatch, capsys, where
        self.folder = Path(where[1])

    def run(self, *words: str) -> tuple[int, str, str]:
        self._monkeypatch.setattr("sys.argv", ["menura search", *words, *self.where])
        code = search_command.main()
        said = self._capsys.readouterr()
        return code, said.out, said.err

    def json(self, *words: str) -> dict[str, Any]:
        code, out, err = self.run("query", *words, "--table", NAME, "--output", "json")
        assert (code, err) == (0, "")
        found: dict[str, Any] = json.loads(out)
        return found


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    return Command(monkeypatch, capsys, "--folder", str(tmp_path / "indexes"))


def test_a_table_when_it_is_indexed_then_it_is_found_with_facets_and_how_far_that_is(
    held: Lake, command: Command
) -> None:
    index = ("index", NAME, "--lake", str(held.folder))
    assert command.run(*index) == (0, "", "")
    found = command.json("note 1", "--filter", "id>1", "--facet", "note", "--limit", "1")
    assert (found["total"], len(found["rows"])) == (2, 1)
    assert found["rows"][0] == {"id": found["rows"][0]["id"], "amount": str(2**64 - 1), "note": "note 1"}
    assert found["facets"] == {"note": {"counts": [{"value": "note 1", "rows": 2}], "other_rows": 0}}
    assert found["behind"] == {"index_cut": 1, "lake_cut": 1, "seconds": 0.0}
    held.cut((ORDERS, [delete(**row(1, "note 1"))]))
    behind = command.json("")["behind"]
    assert (behind["index_cut"], behind["lake_cut"]) == (1, 2)
    assert behind["seconds"] > 0
    code, out, _ = command.run("query", "note", "--table", NAME, "--facet", "note", "--limit", "1")
    assert code == 0
    assert re.search(r"id +amount +note\n\d +18446744073709551615 +note \d\n\nnote:\n +3 +note 0", out)
    assert re.search(r"1 of 9 rows, as of cut 1; the lake is at cut 2, \d+\.\d s ahead", out)
    assert command.run(*index) == (0, "", "")
    _, out, _ = command.run("query", "", "--table", NAME)
    assert "8 of 8 rows, as of the lake's newest cut, 2" in out


class Steps(threading.Event):
    """What happens, one after the other, while the command waits for changes; then it is told to end."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        super().__init__()
        self._steps = iter(steps)

    def wait(self, timeout: float | None = None) -> bool:
        step = next(self._steps, None)
        if step is None:
            self.set()
        else:
            step()
        return self.is_set()


def test_a_table_when_its_lake_or_it_comes_later_then_an_index_that_follows_waits_and_says_so_once(
    writer: Writer, lake: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Lake(writer, lake)
    steps = Steps(
        lambda: None,
        lambda: later.cut((DOTTED, [insert(id=1)])),
        lambda: None,
        lambda: later.cut((ORDERS, [insert(**row(1))])),
    )
    monkeypatch.setattr(search_command, "threading", SimpleNamespace(Event=lambda: steps))
    code, out, err = command.run("index", NAME, "--lake", str(lake), "--follow")
    assert (code, out) == (0, "")
    of_source, of_table = err.splitlines()
    assert of_source.startswith("Waits for a source: TABLE_NOT_IN_LAKE") and "has no cut of acme/shop" in of_source
    assert of_table == f"{ID} is not in the lake yet, and is indexed when it comes"
    assert command.json("")["total"] == 1
    assert command.run("index", NAME.replace("orders", "nothing"), "--lake", str(lake))[0] != 0


def test_a_check_when_the_index_has_other_rows_then_it_ends_with_1(held: Lake, command: Command) -> None:
    command.run("index", NAME, "--lake", str(held.folder))
    code, out, _ = command.run("check", NAME)
    assert (code, re.sub("[0-9a-f]{16}", "SUM", out)) == (
        0,
        f"{NAME}: equal at cut 1: 9 rows in the index, 9 in the lake, sums of keys SUM, and sums of rows\n",
    )
    _, reached = open_index(command.folder, ID)
    writer = IndexWriter(command.folder, ID, reached.definition, 1)
    writer.clear()
    writer.commit(reached)
    writer.close()
    code, out, _ = command.run("check", NAME)
    assert code == 1
    assert "DIFFERS at cut 1: 0 rows in the index, 9 in the lake" in out
    assert "lacks 9 rows, has 0 too many, and 0 with other values" in out


def test_a_command_when_it_can_not_be_done_then_one_line_says_why_and_what_to_do(
    held: Lake, command: Command, tmp_path: Path
) -> None:
    code, out, err = command.run("query", "x", "--table", NAME)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "SEARCH_INDEX_MISSING" in err
    assert f"menura search index {NAME}" in err
    lake = ("--lake", str(held.folder))
    with taking(command.folder):
        code, _, err = command.run("index", NAME, *lake)
    assert code == SearchIndexFailed.exit_code
    assert "another process writes indexes there" in err
    assert command.run("index", "acme/shop", *lake)[0] == 0
    held.cut((Workload.EVENTS, [insert(kind="a")]))
    code, _, err = command.run("index", "acme/shop", *lake)  # a new table, without a key
    assert code == 1
    assert "SEARCH_TABLE_REFUSED" in err
    assert "events has no key" in err
    for words in (('"',), ("x", "--filter", "id=x"), ("x", "--limit", "0"), ("x", "--facet", "none")):
        code, _, err = command.run("query", *words, "--table", NAME)
        assert (code, err.count("\n")) == (2, 1)
        assert "SEARCH_REFUSED" in err
    assert command.run("query", "x", "--table", "acme/shop")[0] == 2
    found = command.json("", "--lake", str(tmp_path / "elsewhere"))
    assert found["total"] == 9
    assert "no cut with" in found["behind"]["unknown"]
    code, _, err = command.run("check", NAME, "--lake", str(tmp_path / "elsewhere"))
    assert (code, err.count("\n")) == (1, 1)
    held.cut((ORDERS, [insert(**row(20))]))
    for file in Path(ID.folder(str(held.folder))).glob("changelog/*.parquet"):
        file.unlink()
    code, _, err = command.run("index", NAME, *lake)
    assert code == LakeStorageFailed.exit_code
    assert "LAKE_STORAGE_FAILED" in err
    assert command.json("")["total"] == 9  # as before


def test_an_index_when_its_files_are_damaged_then_one_line_says_so(held: Lake, command: Command) -> None:
    command.run("index", NAME, "--lake", str(held.folder))
    meta = command.folder / NAME / "1" / "meta.json"
    whole = meta.read_text()
    for text in ("", "{}", whole[:-20]):
        meta.write_text(text)
        code, _, err = command.run("query", "x", "--table", NAME)
        assert (code, err.count("\n")) == (SearchIndexFailed.exit_code, 1)
        assert "may be removed" in err
