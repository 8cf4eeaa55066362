"""A folder of Avro files: what other readers find in them is what the files of JSON lines have, once each."""

import gc
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from spark_sink import export_command
from spark_sink.errors import SinkSettingInvalid
from spark_sink.export import avro_files, outputs
from spark_sink.export.avro_files import AvroEntries
from spark_sink.export.feed import Feed, Step
from spark_sink.export.fields import avro_field_of
from spark_sink.export.outputs import FolderOutput, Form
from spark_sink.work import TableId
from tests.spark_sink.killing import Killed, kill_at
from tests.spark_sink.landing import Table, Workload, Writer, altered, delete, insert, table_id, truncate, update
from tests.spark_sink.test_export import DOTTED, ID, KEYED, KILLED, ORDERS, Lake, export, lines, row
from tests.spark_sink.test_export_avro import as_read


@pytest.fixture
def held(writer: Writer, lake: Path) -> Lake:
    return Lake(writer, lake)


def avro(folder: Path, form: Form = KEYED) -> FolderOutput:
    return FolderOutput(folder, form, AvroEntries)


def files(folder: Path, table: TableId = ID) -> list[Path]:
    """In the order of their names."""
    return sorted((folder / table.tenant / table.source / table.database / table.table).glob("*.avro"))


def records(folder: Path, table: TableId = ID) -> Iterator[Any]:
    for path in files(folder, table):
        with path.open("rb") as file:
            yield from fastavro.reader(file)


def without_times(message: dict[str, Any] | None) -> dict[str, Any] | None:
    """Of when it was made."""
    return message and {name: value for name, value in message.items() if not name.startswith("ts_")}


def test_files_in_avro_when_they_are_read_then_they_have_what_those_in_json_have(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(avro_files, "BLOCK_BYTES", 700)
    work, tables = Workload(5), (Workload.ORDERS, Workload.EVENTS)
    outs, json_outs = avro(tmp_path / "avro"), FolderOutput(tmp_path / "json", KEYED)
    for number in range(6):
        for _ in range(3):
            work.cut(held.writer)
        if number == 3:
            work.orders.rows.clear()
            held.writer.cut(truncate(Workload.ORDERS))
        held.follow()
        export(held, outs, *map(table_id, tables), fields=avro_field_of)
        export(held, json_outs, *map(table_id, tables))
    ops = set()
    for table in map(table_id, tables):
        found, expected = list(records(tmp_path / "avro", table)), lines(tmp_path / "json", table)
        schema = Feed(str(held.folder), [table]).next().sources[0][0].envelope.value_schema()  # type: ignore[union-attr]
        assert len(found) == len(expected) > 20
        for message, (key, value) in zip(found, expected, strict=True):
            assert message["key"] == key
            assert without_times(message["value"]) == without_times(as_read(schema, value))
            ops.add(value and value["op"])
    assert ops == {"c", "u", "d", "t", None}


@pytest.mark.history
def test_an_export_in_avro_when_it_is_killed_between_any_two_steps_then_each_change_is_out_once(
    held: Lake, tmp_path: Path
) -> None:
    folder, ids = tmp_path / "out", (ID, table_id(DOTTED))
    for number, (module, name, call) in enumerate(KILLED):
        held.cut((ORDERS, [insert(**row(number)), insert(**row(100 + number))]), (DOTTED, [insert(id=number)]))
        with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
            kill_at(patched, module, name, call)
            export(held, avro(folder), *ids, fields=avro_field_of)
        gc.collect()  # nothing has the killed one's lock
    export(held, avro(folder), *ids, fields=avro_field_of)
    assert [message["key"]["id"] for message in records(folder)] == [
        number for each in range(len(KILLED)) for number in (each, 100 + each)
    ]
    assert [message["key"]["id"] for message in records(folder, ids[1])] == list(range(len(KILLED)))
    assert not list(folder.rglob("*.draft"))


def test_a_file_in_avro_when_more_are_written_than_may_be_open_then_each_is_whole(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.cut((ORDERS, [insert(**row(1)), insert(**row(2))]))
    step = Feed(str(held.folder), [ID], fields=avro_field_of).next() or pytest.fail()
    ((of,),) = step.sources
    tables, rows = [replace(ID, table=f"t{number}") for number in range(12)], list(of.rows())
    many = [replace(of, envelope=replace(of.envelope, table=table), rows=partial(iter, rows)) for table in tables]
    monkeypatch.setattr(outputs, "OPEN_FILES", 3)
    avro(tmp_path / "out").write(Step([many], step.position))
    for table in tables:
        assert [message["key"]["id"] for message in records(tmp_path / "out", table)] == [1, 2]


def test_files_in_avro_when_a_row_has_a_former_column_then_another_file_begins(held: Lake, tmp_path: Path) -> None:
    before = Table("visits", {"id": pa.int32(), "gone": pa.string()})
    after = Table("visits", {"id": pa.int32()})
    held.cut((before, [insert(id=1, gone=None), insert(id=2, gone="x"), insert(id=3, gone=None)]))
    held.cut(altered(after))
    held.cut((after, [insert(id=4)]))
    export(held, avro(tmp_path / "out", Form()), table_id(before), fields=avro_field_of)
    assert [path.name[-11:] for path in files(tmp_path / "out", table_id(before))] == ["000001.avro", "000002.avro"]
    assert [message["after"] for message in records(tmp_path / "out", table_id(before))] == [
        {"id": 1},
        {"id": 2, "gone": "x"},
        {"id": 3, "gone": None},
        {"id": 4, "gone": None},
    ]


def test_the_command_when_it_writes_avro_then_files_say_their_schema_and_what_does_not_go_together_is_refused(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*more: str) -> int:
        monkeypatch.setattr("sys.argv", ["menura export", "acme/shop", "--lake", str(held.folder), *more])
        return export_command.main()

    held.cut((ORDERS, [insert(**row(1)), update(row(1), row(1, "b")), delete(**row(1, "b"))]))
    assert run("--format", "avro", "--output", str(tmp_path / "out"), "--skipped-operations", "c") == 0
    assert [(each["op"], each["before"]) for each in records(tmp_path / "out")] == [
        ("u", {"id": 1, "amount": Decimal(2**64 - 1), "note": None}),
        ("d", {"id": 1, "amount": Decimal(2**64 - 1), "note": "b"}),
    ]
    (path,) = files(tmp_path / "out")
    with path.open("rb") as file:
        schema = fastavro.reader(file).writer_schema
    assert isinstance(schema, dict) and schema["connect.name"] == "shop.shop.orders.Envelope"
    registry = ("--registry", "http://127.0.0.1:1")
    for refused in (
        ("--format", "avro"),
        ("--format", "avro", "--kafka", "127.0.0.1:1"),
        ("--format", "avro", "--output", str(tmp_path / "x"), *registry),
        ("--format", "avro", "--output", str(tmp_path / "x"), "--schema"),
        ("--kafka", "127.0.0.1:1", *registry),
    ):
        assert run(*refused) == SinkSettingInvalid.exit_code
        assert "SINK_SETTING_INVALID" in capsys.readouterr().err and not (tmp_path / "x").exists()
