"""What leaves a lake: replayed it is the current state, each change once, and what is missing is an error."""

import base64
import gc
import io
import json
import resource
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_sink import export_command
from spark_sink.errors import (
    ChangelogShortened,
    ExportOutputFailed,
    ExportPositionInvalid,
    LakeStorageFailed,
    SinkError,
    TableNotInLake,
)
from spark_sink.export import outputs
from spark_sink.export.feed import Feed, Step
from spark_sink.export.fields import FieldOf, field_of
from spark_sink.export.lake_access import store_failures
from spark_sink.export.outputs import FolderOutput, Form, StreamOutput
from spark_sink.export.position import Position, read_position
from spark_sink.export.rows import Row
from spark_sink.lake.changelog_retention import read_kept, write_kept
from spark_sink.reading import current_state
from spark_sink.work import CHANGELOG, TableId
from tests.spark_sink.killing import Killed, kill_at
from tests.spark_sink.landing import (
    Chunk,
    Event,
    Table,
    Workload,
    Writer,
    altered,
    delete,
    insert,
    table_id,
    truncate,
    update,
)
from tests.spark_sink.test_reading_at import batch

ORDERS = Table("orders", {"id": pa.int32(), "amount": pa.uint64(), "note": pa.string()})
ID = table_id(ORDERS)
#: a name that looks like a way out of the folder
DOTTED = Table("a..b", {"id": pa.int32()})
#: a line's place in its file decides, and that of the file
KEYED = Form(keys=True)
#: each at a call of one run, which writes two files, the position, and gives the files their names
KILLED = [
    *((Path, "open", call) for call in (1, 2)),
    *((outputs.os, "fsync", call) for call in (1, 2, 3)),
    (outputs, "replace_document", 1),
    *((Path, "replace", call) for call in (1, 2, 3)),
    (outputs, "_sync", 4),
]


class Lake:
    """A lake that follows a landing, batch by batch, with its records."""

    def __init__(self, writer: Writer, lake: Path) -> None:
        self.writer, self.folder, self.entry = writer, lake, 0

    def follow(self) -> None:
        first, self.entry = self.entry + 1, self.writer.entry
        batch(self.writer, self.folder, first, self.entry)

    def cut(self, *batches: Any) -> None:
        self.writer.cut(*batches)
        self.follow()

    def changelog(self, table: TableId = ID) -> DeltaTable:
        return DeltaTable(f"{table.folder(str(self.folder))}/{CHANGELOG}")

    def rows(self, table: Table) -> list[str]:
        found = current_state(str(self.folder), table_id(table)).to_pylist()
        return sorted(repr([row[name] for name in table.columns]) for row in found)


@pytest.fixture
def held(writer: Writer, lake: Path) -> Lake:
    return Lake(writer, lake)


class Consumer:
    """Applies messages by key, as those of Debezium do; rows of a table without a key by their values."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Any]] = {}

    def apply(self, messages: Iterable[tuple[Any, Any]]) -> None:
        for key, value in messages:
            if value is None:
                assert key is not None and json.dumps(key) not in self.rows
                continue
            before, after = value["before"], value["after"]
            op = value["op"]
            assert (op in "cr" and before is None) or op in "udt"
            if op == "t":
                self.rows.clear()
            elif key is not None:
                self.rows.pop(json.dumps(key), None)
                if after is not None:
                    self.rows[json.dumps(key)] = [after]
            else:
                if before is not None:
                    self.rows[json.dumps(before)].pop()
                if after is not None:
                    self.rows.setdefault(json.dumps(after), []).append(after)

    def held(self, table: Table) -> list[str]:
        rows = [row for rows in self.rows.values() for row in rows]
        return sorted(repr([_lake_value(table, name, row[name]) for name in table.columns]) for row in rows)


def _lake_value(table: Table, name: str, value: Any) -> Any:
    is_wide = table.columns[name] == pa.uint64() and value is not None
    return Decimal(int.from_bytes(base64.b64decode(value), "big", signed=True)) if is_wide else value


def lines(folder: Path, table: TableId = ID) -> list[tuple[Any, Any]]:
    """Of all files in the order of their names."""
    found = sorted((folder / table.tenant / table.source / table.database / table.table).glob("*.jsonl"))
    return [pair for file in found for pair in _pairs(file.read_text().splitlines())]


def _pairs(found: Iterable[str]) -> Iterator[tuple[Any, Any]]:
    for line in found:
        key, _, value = line.partition("\t")
        yield json.loads(key), json.loads(value)


def export(held: Lake, output: FolderOutput, *tables: TableId, fields: FieldOf = field_of) -> Position | None:
    """All that is new, as one run of the command. Raises why a table is left out."""
    before = output.position()
    feed = Feed(str(held.folder), tables or [ID], position=before or Position(), fields=fields)
    while (step := feed.next()) is not None:
        output.write(step)
        feed.position = step.position
    for failure in feed.failed.values():
        raise failure
    return output.position()


def row(number: int, note: str | None = None, amount: int = 2**64 - 1) -> dict[str, object]:
    return {"id": number, "amount": amount, "note": note}


class Dumps:
    """A dump of `orders` beside changes: chunks are read at one moment and land later; the log has gaps before it."""

    def __init__(self, work: Workload, held: Lake) -> None:
        self.work, self.held, self.random = work, held, work.random
        self.number, self.started_gsn = 0, 0
        self.read: list[Chunk] = []

    def step(self) -> Iterator[Any]:
        last = self.held.writer.last_gsns["acme", "shop"]
        rows = self.work.orders.expected()
        if not self.started_gsn:
            self._change_silently()
            self.number, self.started_gsn = self.number + 1, last + 1
            yield Event(ORDERS, "DUMP_STARTED", dump=f"dump-{self.number}")
        elif len(self.read) < 3:
            third = [values for values in rows if int(str(values["id"])) % 3 == len(self.read)]
            self.read.append(Chunk(ORDERS, third, last, len(self.read), f"dump-{self.number}"))
        elif len(self.read) == 3:
            yield from self.read
            yield Event(ORDERS, "DUMPED", dump=f"dump-{self.number}", removes_rows_before_gsn=self.started_gsn)
            self.read, self.started_gsn = [], 0

    def _change_silently(self) -> None:
        """The log does not have all: some rows go, some come."""
        for text in list(self.work.orders.rows.elements())[:2]:
            self.work.orders.rows[text] -= 1
        free = set(range(60)) - {int(str(values["id"])) for values in self.work.orders.expected()}
        for number in self.random.sample(sorted(free), 6):
            self.work.orders.follow([insert(**row(number, "silent"))])


@pytest.mark.history
@pytest.mark.parametrize("seed", range(3))
def test_an_export_when_it_is_replayed_by_key_then_it_is_the_current_state_at_each_cut(
    held: Lake, tmp_path: Path, seed: int
) -> None:
    work = Workload(seed)
    tables = (Workload.ORDERS, Workload.EVENTS)
    output, consumers, seen = FolderOutput(tmp_path / "out", KEYED), (Consumer(), Consumer()), [0, 0]
    held.cut((ORDERS, work.orders.follow([insert(**row(0, "a"))])))
    dumps = Dumps(work, held)
    for number in range(10):
        for _ in range(work.random.randrange(1, 3)):
            work.cut(held.writer)
        for _ in range(2):
            held.writer.cut(*dumps.step())
        if work.random.random() < 0.1:
            work.orders.rows.clear()
            held.writer.cut(truncate(ORDERS))
        held.follow()
        if number % 5 == 2:
            held.changelog().optimize.compact()
        if work.random.random() < 0.3:
            continue
        export(held, output, *map(table_id, tables))
        for place, (table, consumer) in enumerate(zip(tables, consumers, strict=True)):
            found = lines(tmp_path / "out", table_id(table))
            consumer.apply(found[seen[place] :])
            seen[place] = len(found)
            assert consumer.held(table) == held.rows(table)
    read = [
        (key["id"], value["source"]["gsn"]) for key, value in lines(tmp_path / "out") if value and value["op"] == "r"
    ]
    assert len(read) == len(set(read)) > 6
    whole = FolderOutput(tmp_path / "again", KEYED)
    export(held, whole, *map(table_id, tables))
    for table in tables:
        again = Consumer()
        again.apply(lines(tmp_path / "again", table_id(table)))
        assert again.held(table) == held.rows(table)


@pytest.mark.history
def test_an_export_when_it_is_killed_between_any_two_steps_then_each_change_is_out_once(
    held: Lake, tmp_path: Path
) -> None:
    folder, ids = tmp_path / "out", (ID, table_id(DOTTED))
    taken: dict[TableId, list[tuple[Any, Any]]] = {table: [] for table in ids}
    for number, (module, name, call) in enumerate(KILLED):
        held.cut((ORDERS, [insert(**row(number)), insert(**row(100 + number))]), (DOTTED, [insert(id=number)]))
        with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
            kill_at(patched, module, name, call)
            export(held, FolderOutput(folder, KEYED), *ids)
        gc.collect()  # nothing has the killed one's lock
        if number % 3 == 0:  # a reader takes what is there
            for table in ids:
                taken[table] += lines(folder, table)
            for file in folder.rglob("*.jsonl"):
                file.unlink()
    export(held, FolderOutput(folder, KEYED), *ids)
    orders, dotted = ([key["id"] for key, _ in taken[table] + lines(folder, table)] for table in ids)
    assert orders == [number for each in range(len(KILLED)) for number in (each, 100 + each)]
    assert dotted == list(range(len(KILLED)))
    assert not list(folder.rglob("*.draft"))


def test_an_export_when_a_key_changes_or_goes_then_the_old_one_has_a_delete_and_a_tombstone(
    held: Lake, tmp_path: Path
) -> None:
    held.cut((ORDERS, [insert(**row(1)), update(row(1), row(2)), update(row(2), row(2, "b")), delete(**row(2, "b"))]))
    held.cut((ORDERS, [insert(**row(3))]), truncate(ORDERS), (ORDERS, [insert(**row(4))]))
    export(held, FolderOutput(tmp_path / "out", KEYED))
    found = [(key and key["id"], value and value["op"]) for key, value in lines(tmp_path / "out")]
    moved = [(1, "c"), (1, "d"), (1, None), (2, "c"), (2, "u"), (2, "d"), (2, None)]
    assert found == [*moved, (3, "c"), (None, "t"), (4, "c")]
    plain = FolderOutput(tmp_path / "plain", Form(skipped=frozenset("t")))
    export(held, plain)
    (file, *_) = (tmp_path / "plain").rglob("*.jsonl")
    values = [json.loads(line) for line in file.read_text().splitlines()]
    assert [value["op"] for value in values] == ["c", "d", "c", "u", "d", "c", "c"]
    assert values[3]["before"]["note"] is None and values[3]["after"]["note"] == "b"


def test_an_export_when_the_source_has_told_its_types_then_values_have_their_units(held: Lake, tmp_path: Path) -> None:
    columns = {"id": pa.int32(), "at": pa.timestamp("us")}
    table = Table("visits", columns, source_types={"id": "int", "at": "datetime(3)"})
    at_us = 1_769_860_800_120_000
    held.cut((table, [insert(id=1, at=at_us)]))
    held.cut(altered(table, types={"at": "datetime(6)"}))
    feed = Feed(str(held.folder), [table_id(table)])
    (of, message), *_ = list((feed.next() or pytest.fail()).messages())
    assert message.value and message.value["after"]["at"] == at_us and of.envelope.shape.fields()["id"].type == "int32"
    held.cut((table, [insert(id=2, at=at_us)]))
    assert [message.value["after"]["at"] for _, message in feed.next().messages()] == [at_us // 1000] * 2


def test_an_export_when_it_begins_with_the_state_then_gives_rows_as_reads_and_goes_on_behind_them(
    held: Lake, tmp_path: Path
) -> None:
    held.cut((ORDERS, [insert(**row(1)), insert(**row(2)), delete(**row(1))]))
    output = FolderOutput(tmp_path / "out", KEYED)
    feed = Feed(str(held.folder), [ID])
    feed.position = export_command.begin(feed, "state", output)
    held.cut((ORDERS, [update(row(2), row(2, "b"))]))
    export(held, output)
    found = lines(tmp_path / "out")
    assert [(key["id"], value["op"]) for key, value in found] == [(2, "r"), (2, "u")]
    assert found[0][1]["source"]["snapshot"] == "true"
    assert export_command.begin(feed, "newest", output).cuts == {("acme", "shop"): 2}
    other = FolderOutput(tmp_path / "other", KEYED)
    assert other.position() is None
    assert export_command.begin(feed, "newest", other) == other.position()
    assert export_command.begin(feed, "1", output).cuts == {("acme", "shop"): 1}


def test_an_export_when_the_changelog_has_lost_what_it_needs_then_says_so_and_what_to_do(
    held: Lake, tmp_path: Path
) -> None:
    output = FolderOutput(tmp_path / "out", KEYED)
    held.cut((ORDERS, [insert(**row(1))]))
    position = export(held, output)
    assert position is not None
    held.cut((ORDERS, [insert(**row(2))]))
    write_kept(held.changelog(), type(read_kept(held.changelog()))(begins_gsn=4))
    held.cut((ORDERS, [insert(**row(3))]))
    with pytest.raises(ChangelogShortened, match="--from state"):
        export(held, output)
    assert len(lines(tmp_path / "out")) == 1
    facts = position.tables[ID]
    others = Position(position.cuts, {ID: type(facts)(facts.gsn, facts.chunk_cut, facts.version, "another")})
    feed = Feed(str(held.folder), [ID], position=others)
    assert feed.next() is None
    assert isinstance(feed.failed[ID], ExportPositionInvalid) and "another table of this name" in str(feed.failed[ID])


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2}', '{"format": 1, "sources": [{"tenant": "a"}]}'])
def test_a_position_when_it_can_not_be_read_then_nothing_is_exported(text: str) -> None:
    with pytest.raises(ExportPositionInvalid, match="Nothing was exported"):
        read_position(text, "position.json")


def test_an_export_when_its_folder_can_not_be_written_then_says_so(held: Lake, tmp_path: Path) -> None:
    held.cut((ORDERS, [insert(**row(1))]))
    (tmp_path / "out").write_text("a file")
    with pytest.raises(ExportOutputFailed, match="position stays"):
        export(held, FolderOutput(tmp_path / "out", KEYED))


def test_an_export_when_another_one_has_its_folder_then_it_is_refused_and_files_of_others_stay(
    held: Lake, tmp_path: Path
) -> None:
    held.cut((ORDERS, [insert(**row(1))]))
    folder = tmp_path / "out"
    draft, foreign = folder / ID.default_folder / f"{1:020}-{1:020}.jsonl.draft", folder / "letters" / "a.draft"
    first = FolderOutput(folder, KEYED)
    assert first.position() is None
    for file in (draft, foreign):
        file.parent.mkdir(parents=True)
        file.write_text("")
    with pytest.raises(ExportOutputFailed, match="another export writes there"):
        FolderOutput(folder, KEYED).position()
    assert draft.exists()
    export(held, first)
    assert not draft.exists() and foreign.exists() and len(lines(folder)) == 1
    del first
    gc.collect()
    assert FolderOutput(folder, KEYED).position() is not None


def test_an_export_when_a_draft_is_gone_behind_the_position_then_says_so(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = outputs.replace_document

    def replace_and_remove(path: Path, document: Mapping[str, Any]) -> None:
        real(path, document)
        for draft in path.parent.rglob("*.draft"):
            draft.unlink()

    held.cut((ORDERS, [insert(**row(1))]))
    monkeypatch.setattr(outputs, "replace_document", replace_and_remove)
    with pytest.raises(ExportOutputFailed, match="not out, and the position is behind them"):
        export(held, FolderOutput(tmp_path / "out", KEYED))


@pytest.mark.parametrize("files", [5, [7], ["/etc/passwd"], [f"a/b/../c/{1:020}-{1:020}.jsonl"], ["a/b/c/d/x.jsonl"]])
def test_a_position_when_it_names_other_files_then_nothing_is_exported(tmp_path: Path, files: object) -> None:
    (tmp_path / "position.json").write_text(json.dumps({"format": 1, "sources": [], "files": files}))
    with pytest.raises(ExportPositionInvalid, match="names files that no export writes"):
        FolderOutput(tmp_path, KEYED).position()


def test_an_export_when_the_lake_can_not_be_read_then_the_output_is_not_blamed(held: Lake, tmp_path: Path) -> None:
    def away() -> Iterator[Row]:
        raise ConnectionResetError

    held.cut((ORDERS, [insert(**row(1))]))
    step = Feed(str(held.folder), [ID]).next() or pytest.fail()
    ((of,),) = step.sources
    for output in (FolderOutput(tmp_path / "out", KEYED), StreamOutput(io.StringIO(), KEYED)):
        with pytest.raises(LakeStorageFailed), store_failures():
            output.write(Step([[replace(of, rows=away)]], step.position))


def test_an_export_when_a_step_has_more_tables_than_files_may_be_open_then_each_is_whole(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.cut((ORDERS, [insert(**row(1)), insert(**row(2))]))
    step = Feed(str(held.folder), [ID]).next() or pytest.fail()
    ((of,),) = step.sources
    tables, rows = [replace(ID, table=f"t{number}") for number in range(32)], list(of.rows())
    many = [replace(of, envelope=replace(of.envelope, table=table), rows=partial(iter, rows)) for table in tables]
    monkeypatch.setattr(outputs, "OPEN_FILES", 4)
    used = {int(each.name) for each in Path("/proc/self/fd").iterdir()}
    free = [number for number in range(len(used) + 17) if number not in used]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[16], hard))
    try:
        FolderOutput(tmp_path / "out", KEYED).write(Step([many], step.position))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for table in tables:
        assert [key["id"] for key, _ in lines(tmp_path / "out", table)] == [1, 2]


def test_the_command_when_it_is_run_again_then_it_goes_on_behind_its_position(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*more: str) -> int:
        monkeypatch.setattr("sys.argv", ["menura export", "acme/shop", "--lake", str(held.folder), *more])
        return export_command.main()

    position = ("--position", str(tmp_path / "position.json"))
    held.cut((ORDERS, [insert(**row(1))]))
    assert run(*position, "--schema", "--with-keys") == 0
    ((key, value),) = _pairs(capsys.readouterr().out.splitlines())
    assert key["payload"] == {"id": 1} and value["payload"]["op"] == "c"
    assert [field["field"] for field in value["schema"]["fields"]][:4] == ["before", "after", "source", "transaction"]
    held.cut((ORDERS, [insert(**row(2))]))
    assert run(*position) == 0
    assert [json.loads(line)["after"]["id"] for line in capsys.readouterr().out.splitlines()] == [2]
    assert run(*position, "--from", "beginning") == SinkError.exit_code + 1
    assert "has a position already" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["menura export", "acme/shop/shop/order", "--lake", str(held.folder)])
    assert export_command.main() == TableNotInLake.exit_code
    assert "Name a table of the lake; it has acme/shop/shop/orders." in capsys.readouterr().err
    assert run("--from", "yesterday") == 2 and run("--output", str(tmp_path), *position) == 2
    assert run("--from", "yesterday", "--output", str(tmp_path / "new")) == 2 and not (tmp_path / "new").exists()
