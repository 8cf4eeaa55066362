"""Pipes of a file: each has its own position and fails alone; a wrong file is an error before anything runs."""

import json
import logging
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from spark_sink import export_command
from spark_sink.errors import (
    ExportOutputFailed,
    ExportPositionInvalid,
    ExportSchemaRefused,
    PluginInvalid,
    SinkError,
    SinkSettingInvalid,
    TableNotInLake,
)
from spark_sink.export import following
from spark_sink.pipes import producers, standings
from spark_sink.pipes.configuration import read_config
from spark_sink.pipes.producers import consumer_of
from spark_sink.pipes.running import prepare
from spark_sink.plugins.plugin import Change
from spark_sink.plugins.row_cache import RowCache
from tests.spark_sink.landing import Table, Workload, delete, insert, update
from tests.spark_sink.test_export import ID, ORDERS, Lake, held, lines, row
from tests.spark_sink.test_plugins import cached
from tests.stack import wait_for

__all__ = ["held"]

COMMAND = [sys.executable, "-c", "import sys; from spark_sink.export_command import main; sys.exit(main())"]
HEAD = """
lake = "LAKE"
positions = "FOLDER/positions"
"""
FILES = """
[[pipe]]
name = "files"
tables = ["acme/shop"]
producer = "files"
options = { folder = "FOLDER/out" }
messages = { keys = true }
"""
STDOUT = """
[[pipe]]
name = "lines"
tables = ["acme/shop/shop/orders"]
producer = "stdout"
"""
CACHE = """
[[pipe]]
name = "cache"
tables = ["acme/shop/shop/ord*"]
producer = "row-cache"
from = "state"
options = { file = "FOLDER/cache.sqlite" }
"""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "FIRST_PAUSE_SECONDS", 0.0)


def write(held: Lake, folder: Path, *pipes: str, head: str = HEAD) -> Path:
    file = folder / "pipes.toml"
    file.write_text("".join((head, *pipes)).replace("LAKE", str(held.folder)).replace("FOLDER", str(folder)))
    return file


def run(monkeypatch: pytest.MonkeyPatch, file: Path, *more: str) -> int:
    """The command."""
    monkeypatch.setattr("sys.argv", ["menura export", "--file", str(file), *more])
    return export_command.main()


def test_pipes_when_they_run_again_then_each_goes_on_behind_its_own_position(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(held, tmp_path, FILES, STDOUT, CACHE)
    held.cut((ORDERS, [insert(**row(1)), insert(**row(2))]), (Workload.EVENTS, [insert(kind="a", value=1.0)]))
    for number in (3, 4):
        assert run(monkeypatch, file) == 0, capsys.readouterr().err
        assert [json.loads(line)["after"]["id"] for line in capsys.readouterr().out.splitlines()] == (
            [1, 2] if number == 3 else [3]
        )
        assert cached(tmp_path / "cache.sqlite", ORDERS) == held.rows(ORDERS)
        held.cut((ORDERS, [update(row(1), row(1, "b")) if number == 4 else insert(**row(number))]))
    assert run(monkeypatch, write(held, tmp_path, FILES)) == 0
    assert [(key["id"], value["op"]) for key, value in lines(tmp_path / "out")] == [
        (1, "c"), (2, "c"), (3, "c"), (1, "u")]  # fmt: skip
    assert list((tmp_path / "out/acme/shop/shop/events").iterdir())
    assert run(monkeypatch, write(held, tmp_path, CACHE)) == 0
    assert cached(tmp_path / "cache.sqlite", ORDERS) == held.rows(ORDERS)
    kinds = {each.name: json.loads((tmp_path / "positions" / each.name / "status.json").read_text())["state"]
             for each in (tmp_path / "positions").iterdir()}  # fmt: skip
    assert kinds == {"files": "up to date", "lines": "up to date", "cache": "up to date"}


@pytest.mark.usefixtures("patient")
def test_a_pipe_when_it_fails_then_it_is_tried_again_while_others_go_on_and_its_standing_says_so(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "menura.export")
    held.cut((ORDERS, [insert(**row(1))]))
    file = write(held, tmp_path, CACHE, FILES)
    real, told = RowCache.insert, list[str]()

    def fails(self: RowCache, values: object, change: object) -> None:
        if len(told) < 3:
            wait_for("the other pipe", lambda: bool(lines(tmp_path / "out")))
            told.append((tmp_path / "positions/cache/status.json").read_text())
            raise ValueError("a value of a row")
        real(self, values, change)  # type: ignore[arg-type]

    monkeypatch.setattr(RowCache, "insert", fails)
    assert run(monkeypatch, file) == 0
    assert [json.loads(text)["state"] for text in told] == ["begins", "retries", "retries"]
    last = json.loads(told[-1])
    assert last["failures"] == 2 and last["failure"].startswith("PLUGIN_FAILED: calling plug-in cache: insert raised")
    assert "a value of a row" not in caplog.text + told[-1] and "pipe cache goes on after 3 failures" in caplog.text
    assert cached(tmp_path / "cache.sqlite", ORDERS) == held.rows(ORDERS)


def test_a_pipe_when_it_is_to_stop_at_a_failure_then_others_go_on_and_the_exit_code_and_status_say_so(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held.cut((ORDERS, [insert(**row(1))]))
    stopping = FILES.replace("out", "taken").replace("files", "stops").replace('"stops"\nopt', '"files"\nopt')
    file = write(held, tmp_path, stopping + 'on_error = "stop"\n', FILES)
    (tmp_path / "taken").write_text("no folder")
    assert run(monkeypatch, file) == ExportOutputFailed.exit_code
    assert [key["id"] for key, _ in lines(tmp_path / "out")] == [1]
    assert run(monkeypatch, file, "--status") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1].split()[:3] == ["stops", "files", "stopped"] and said[1].split()[-1] == "1"
    assert "files  files     not running (up to date)  acme/shop:1" in said[2]
    assert said[3].startswith("stops: EXPORT_OUTPUT_FAILED: writing an export") and "taken: " in said[3]
    (tmp_path / "taken").unlink()
    assert run(monkeypatch, file) == 0
    assert [key["id"] for key, _ in lines(tmp_path / "taken")] == [1]


@pytest.mark.parametrize("begin", ["beginning", "state"])
def test_a_pipe_when_a_table_can_not_be_written_in_its_form_then_the_table_is_left_out_and_the_status_names_it(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], begin: str
) -> None:
    collide = Table("collide", {"id": ORDERS.columns["id"], "a b": ORDERS.columns["note"],
                                "a?b": ORDERS.columns["note"]})  # fmt: skip
    held.cut((ORDERS, [insert(**row(1))]), (collide, [insert(id=1)]))
    file = write(held, tmp_path, FILES, f'format = "avro"\nfrom = "{begin}"\non_error = "stop"\n')
    assert run(monkeypatch, file) == ExportSchemaRefused.exit_code
    assert run(monkeypatch, file, "--status") == 0
    said = capsys.readouterr().out
    assert "not running (up to date)" in said and "shop.collide is left out, others go on: EXPORT_SCHEMA_REF" in said
    assert len(list((tmp_path / "out/acme/shop/shop/orders").glob("*.avro"))) == 1


@pytest.mark.parametrize(
    ("begin", "ids"), [('"beginning"', [1, 2, 3]), ('"state"', [2, 3]), ('"newest"', [3]), ("2", [2, 3])]
)
def test_a_pipe_when_it_is_new_then_it_begins_where_the_file_says(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: str, ids: list[int]
) -> None:
    for change in (insert(**row(1)), delete(**row(1)), insert(**row(2))):
        held.cut((ORDERS, [change]))
    file = write(held, tmp_path, FILES, f"from = {begin}\n")
    assert run(monkeypatch, file) == 0
    held.cut((ORDERS, [insert(**row(3))]))
    assert run(monkeypatch, file) == 0
    assert [key["id"] for key, value in lines(tmp_path / "out") if value and value["op"] in "cr"] == ids


def test_tables_when_patterns_choose_them_then_later_ones_come_too_and_others_never(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("orders", "orders_old", "order~lines", "customers")
    tables = {name: Table(name, ORDERS.columns) for name in names}
    file = write(
        held, tmp_path, FILES.replace('"acme/shop"]', '"acme/shop/sh*/order*"]\nwithout = ["acme/shop/*/*_old"]')
    )
    held.cut((tables["orders"], [insert(**row(1))]))
    assert run(monkeypatch, file) == 0
    held.cut(*((tables[name], [insert(**row(2))]) for name in names))
    assert run(monkeypatch, file) == 0
    found = {each.parent.name for each in (tmp_path / "out").glob("*/*/*/*/*.jsonl")}
    assert found == {"orders", "order~7Elines"}


@pytest.mark.usefixtures("patient")
def test_the_command_when_it_is_killed_at_any_moment_then_each_change_is_in_the_files_once_and_no_pipe_is_lost(
    held: Lake, tmp_path: Path
) -> None:
    file = write(held, tmp_path, FILES, CACHE)
    command = [*COMMAND, "--file", str(file), "--follow", "--poll-seconds", "0"]

    def has(rows: int) -> bool:
        return len(lines(tmp_path / "out")) >= rows

    for number in range(4):
        held.cut((ORDERS, [insert(**row(10 * number + each)) for each in range(5)]))
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            try:
                wait_for("a step", partial(has, 5 * number + 5))
                assert standings.is_running(tmp_path / "positions/files")
            finally:
                process.send_signal(signal.SIGKILL)
        assert not standings.is_running(tmp_path / "positions/files")
    ended = subprocess.run(command[:-3], check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "pipe files ended, up to cut acme/shop:4" in ended.stderr
    assert [key["id"] for key, _ in lines(tmp_path / "out")] == [10 * n + each for n in range(4) for each in range(5)]
    assert cached(tmp_path / "cache.sqlite", ORDERS) == held.rows(ORDERS)


def test_the_command_when_another_run_has_the_pipes_then_it_is_refused_and_nothing_is_changed(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held.cut((ORDERS, [insert(**row(1))]))
    file = write(held, tmp_path, FILES, CACHE)
    first = consumer_of(read_config(file).pipes[1], tmp_path / "positions/cache")
    assert run(monkeypatch, file) == ExportOutputFailed.exit_code
    assert "positions/cache: another export writes there" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    first.close()
    assert run(monkeypatch, file) == 0


def test_standard_output_when_its_reader_has_gone_then_its_pipe_stops_and_the_others_go_on(
    held: Lake, tmp_path: Path
) -> None:
    held.cut((ORDERS, [insert(**row(number)) for number in range(3000)]))
    file = write(held, tmp_path, STDOUT, FILES)
    read, written = os.pipe()
    os.close(read)
    command = [*COMMAND, "--file", str(file)]
    ended = subprocess.run(command, check=False, stdout=written, stderr=subprocess.PIPE, text=True)
    os.close(written)
    assert ended.returncode == ExportOutputFailed.exit_code, ended.stderr
    assert "pipe lines stopped, others go on: EXPORT_OUTPUT_FAILED" in ended.stderr
    assert "Traceback" not in ended.stderr and len(lines(tmp_path / "out")) == 3000


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda text: text.replace("[[pipe]]", "[[pipe"), r"at line \d+"),
        (lambda text: text.replace("[[pipe]]", "[pipe]"), "it names no pipe"),
        (lambda text: text.replace('lake = "', 'lakes = "'), "the file: 'lakes': unknown; known are lake, pipe"),
        (lambda text: text.replace("positions =", "#"), "the file: positions is missing"),
        (lambda text: text.replace('"files"\ntab', '"../x"\ntab'), r"pipe 1: the name '\.\./x'"),
        (lambda text: text + text.partition("\n\n")[2], "two pipes have the name files"),
        (lambda text: text + FILES.replace('"files"\ntab', '"two"\ntab'), "two pipes have the folder"),
        (lambda text: text + STDOUT + STDOUT.replace('"lines"', '"two"'), "two pipes have the producer stdout"),
        (lambda text: text.replace('["acme/shop"]', "[]"), "pipe files: tables names none"),
        (lambda text: text.replace('["acme/shop"]', '["acme"]'), "pipe files: tables and without: 'acme' is none of"),
        (lambda text: text.replace('["acme/shop"]', '["acme/*/x"]'), "pipe files: tables and without: 'acme/\\*/x': a"),
        (lambda text: text + "from = -1\n", "pipe files: from is -1; use beginning, state, newest, or the number"),
        (lambda text: text + 'on_error = "skip"\n', "pipe files: on_error is 'skip'; use retry, stop"),
        (lambda text: text + 'format = "xml"\n', "pipe files: format is 'xml'; use json, schema, avro"),
        (lambda text: text.replace("folder =", "directory ="), "options: 'directory': unknown; known are folder"),
        (lambda text: text.replace("keys =", "key ="), "pipe files: messages: 'key': unknown; known are decimals"),
        (lambda text: text.replace("keys = true", 'decimals = "x"'), "messages.decimals is 'x'; use precise"),
        (lambda text: text.replace('"FOLDER/out"', "1"), "pipe files: options.folder is no text"),
        (lambda text: text.replace('"files"\nopt', '"nothing"\nopt').partition("mess")[0],
         "pipe files: there is no producer 'nothing'; there are stdout, files, kafka, mysql, row-cache"),
        (lambda text: text.replace('"files"\nopt', '"mysql"\nopt'), "messages: the producer mysql is given rows"),
        (lambda text: text + STDOUT + 'format = "avro"', "pipe lines: format avro to stdout"),
    ],
)  # fmt: skip
def test_a_file_when_it_is_wrong_then_the_error_says_where_and_nothing_has_begun(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    edit: Callable[[str], str], problem: str,
) -> None:  # fmt: skip
    held.cut((ORDERS, [insert(**row(1))]))
    file = write(held, tmp_path, edit(HEAD + "\n" + FILES), head="")
    code = run(monkeypatch, file)
    assert code == SinkSettingInvalid.exit_code
    said = capsys.readouterr().err
    assert said.startswith("menura export: SINK_SETTING_INVALID: reading the pipes' file: ")
    assert re.search(problem, said), said
    assert not (tmp_path / "out").exists()


KAFKA = """
[[pipe]]
name = "topics"
tables = ["acme/shop"]
producer = "kafka"
[pipe.options]
brokers = "127.0.0.1:1"
[pipe.options.settings]
"security.protocol" = "SASL_SSL"
"sasl.password" = "env:PIPE_PASSWORD"
"""


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda text: text.replace("env:PIPE_PASSWORD", "hunter2"),
         "pipe topics: options.settings.sasl.password holds a secret: name where it is instead, env:NAME or file:PATH"),
        (lambda text: text, "the environment variable PIPE_PASSWORD is not set"),
        (lambda text: text.replace("env:PIPE_PASSWORD", "file:FOLDER/none"), "none: No such file or directory"),
        (lambda text: text.replace("127.0.0.1:1", "http://me:hunter2@x"), "options.brokers holds a secret"),
        (lambda text: text.replace("brokers", "broker"), "'broker': unknown; known are brokers, registry"),
        (lambda text: text.replace('"kafka"', '"kafka"\nformat = "avro"'), "format avro wants options.registry"),
        (lambda text: text.replace("[pipe.options.s", 'registry = "http://x"\n[pipe.options.s'), "the other formats"),
        (lambda text: text.replace('"env:PIPE_PASSWORD"', '"file:FOLDER/pipes.toml"\n"x.y" = "1"'), '"x.y"'),
        *((lambda text, own=own: text + f'"{own}" = "x"\n', f"pipe topics: options.settings: {own}: the pipe sets")
          for own in ("transactional.id", "isolation.level", "group.id", "enable.partition.eof", "bootstrap.servers")),
    ],
)  # fmt: skip
def test_a_file_when_it_names_kafka_wrongly_then_the_error_says_where_and_shows_no_secret(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    edit: Callable[[str], str], problem: str,
) -> None:  # fmt: skip
    held.cut((ORDERS, [insert(**row(1))]))
    monkeypatch.delenv("PIPE_PASSWORD", raising=False)
    assert run(monkeypatch, write(held, tmp_path, FILES, edit(KAFKA))) == SinkSettingInvalid.exit_code
    said = capsys.readouterr().err
    assert problem in said and "hunter2" not in said
    assert not (tmp_path / "out").exists()


TARGETS = {
    "kafka": 'options = { brokers = "one:9092,two:9092" }',
    "kafka, another one": 'options = { brokers = "three:9092" }',
    "kafka, one broker": 'options = { brokers = "Two:9092" }',
    "mysql": 'options = { host = "db", user = "u", password = "env:P", database = "one" }',
    "mysql, another": 'options = { host = "db", port = "3307", user = "u", password = "env:P", database = "one" }',
    "spark_sink.plugins.mysql_tables:MySQLTables": 'options = { host = "DB", user = "u",'
    ' password = "env:P", database = "one" }',
    "row-cache": 'options = { file = "rows.sqlite" }',
    "spark_sink.plugins.row_cache:RowCache": 'options = { file = "./rows.sqlite" }',
}


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        (("kafka", "acme/shop"), ("kafka", "beta/shop"), "would write acme/shop and beta/shop to one topic"),
        (("kafka", "acme/shop/shop/order*"), ("kafka, one broker", "acme/shop/*/*s"), "to one topic"),
        (("kafka", "acme/shop/shop/order*"), ("kafka", "acme/shop/shop/person*"), ""),
        (("kafka", "acme/shop"), ("kafka", "acme/crm"), ""),
        (("kafka", "acme/shop"), ("kafka, another one", "acme/shop"), ""),
        (("kafka", "acme/shop", "acme/shop/shop/order*"), ("kafka", "acme/shop/shop/orders"), ""),
        (("kafka", "acme/shop", "acme/shop/shop/orders"), ("kafka", "acme/shop/shop/order*"), "to one topic"),
        (("kafka", "acme/shop", "beta/shop"), ("kafka", "acme/shop/shop/orders"), "to one topic"),
        (("mysql", "acme/shop/shop/orders"), ("mysql", "acme/crm/crm/Order*"), "to one table: divide their tables"),
        (("mysql", "acme/shop"), ("spark_sink.plugins.mysql_tables:MySQLTables", "acme/crm"), "to one table"),
        (("mysql", "acme/shop"), ("mysql, another", "acme/crm"), ""),
        (("mysql", "acme/shop", "acme/shop/*/orders"), ("mysql", "acme/crm/crm/orders"), ""),
        (("row-cache", "acme/shop"), ("spark_sink.plugins.row_cache:RowCache", "acme/crm"), "have the file"),
    ],
)
def test_two_pipes_when_they_would_write_to_one_place_then_the_file_is_refused(
    held: Lake, tmp_path: Path, first: tuple[str, ...], second: tuple[str, ...], problem: str
) -> None:
    def pipe(name: str, target: str, tables: str, *without: str) -> str:
        left_out = f"without = {json.dumps(without)}\n"
        head = f'[[pipe]]\nname = "{name}"\ntables = ["{tables}"]\nproducer = "{target.partition(",")[0]}"\n'
        return head + left_out + TARGETS[target] + "\n"

    file = write(held, tmp_path, pipe("one", *first), pipe("two", *second))
    if not problem:
        assert len(read_config(file).pipes) == 2
        return
    with pytest.raises(SinkSettingInvalid, match=f"pipes one and two .*{problem}"):
        read_config(file)


def test_a_lake_when_it_lacks_what_a_pipe_names_then_no_pipe_has_begun(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held.cut((ORDERS, [insert(**row(1))]))
    for wrong in ("acme/shop/shop/order", "acme/crm/*"):
        file = write(held, tmp_path, FILES, STDOUT.replace("acme/shop/shop/orders", wrong))
        assert run(monkeypatch, file) == TableNotInLake.exit_code
        assert "it has acme/shop/shop/orders" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "neither TABLE and --lake, nor --file"),
        (["acme/shop"], "neither TABLE and --lake, nor --file"),
        (["acme/shop", "--lake", "x", "--status"], "--status without --file"),
        (["acme/shop", "--file", "x", "--format", "avro", "--from", "state"], "--file with --from, --format, TABLE"),
    ],
)
def test_the_arguments_when_they_do_not_go_with_a_file_then_they_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    monkeypatch.setattr("sys.argv", ["menura export", *arguments])
    assert export_command.main() == SinkSettingInvalid.exit_code
    assert problem in capsys.readouterr().err


def test_a_class_when_it_can_not_be_made_then_the_error_shows_its_line_and_no_secret(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "leaky_producer.py").write_text(
        "from spark_sink.plugins.plugin import Plugin\n"
        "class Leaky(Plugin):\n"
        "    def __init__(self, options):\n"
        "        raise ConnectionError(options['dsn'])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("LEAKY_DSN", "postgres://me:hunter2@db")
    held.cut((ORDERS, [insert(**row(1))]))
    leaky = CACHE.replace("row-cache", "leaky_producer:Leaky")
    leaky = leaky.replace('file = "FOLDER/cache.sqlite"', 'dsn = "env:LEAKY_DSN"')
    assert run(monkeypatch, write(held, tmp_path, leaky)) == PluginInvalid.exit_code
    said = capsys.readouterr().err
    assert "reading the pipes' file: pipe cache: leaky_producer:Leaky: making it raised ConnectionError at" in said
    assert "leaky_producer.py:4" in said and "plug-in" not in said and "hunter2" not in said
    monkeypatch.delenv("LEAKY_DSN")
    assert run(monkeypatch, write(held, tmp_path, leaky)) == PluginInvalid.exit_code
    assert "pipe cache: leaky_producer:Leaky: the environment variable LEAKY_DSN is not set" in capsys.readouterr().err


def test_a_name_when_another_producer_has_its_position_then_it_is_refused_until_somebody_says_that_it_is_the_same(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held.cut((ORDERS, [insert(**row(1))]))
    assert run(monkeypatch, write(held, tmp_path, STDOUT)) == 0
    kept = (tmp_path / "positions/lines/position.json").read_text()
    told = STDOUT.replace('"stdout"', '"tests.spark_sink.test_plugins:Told"')
    for other in (told, CACHE.replace('"cache"', '"lines"'), FILES.replace('"files"\ntab', '"lines"\ntab')):
        capsys.readouterr()
        assert run(monkeypatch, write(held, tmp_path, other)) == ExportPositionInvalid.exit_code
        said = capsys.readouterr().err
        assert "position.json has the position of the producer 'stdout', and this is " in said
        assert "Give the new producer another name" in said
        assert (tmp_path / "positions/lines/position.json").read_text() == kept
    renamed = json.loads(kept) | {"producer": "tests.spark_sink.test_plugins:Told"}
    (tmp_path / "positions/lines/position.json").write_text(json.dumps(renamed))
    held.cut((ORDERS, [insert(**row(2))]))
    for _ in range(2):
        assert run(monkeypatch, write(held, tmp_path, told)) == 0, capsys.readouterr().err
    assert run(monkeypatch, write(held, tmp_path, STDOUT)) == ExportPositionInvalid.exit_code


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of another distribution, with a producer by an entry point."""
    folder = tmp_path / "site"
    (folder / "other-1.0.dist-info").mkdir(parents=True)
    (folder / "other-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    names = f"[{producers.GROUP}]\nother = other_producer:Ids\nmysql = other_producer:Ids\n"
    (folder / "other-1.0.dist-info/entry_points.txt").write_text(names)
    (folder / "other_producer.py").write_text(
        "from pathlib import Path\n"
        "from spark_sink.plugins.plugin import Plugin\n"
        "class Ids(Plugin):\n"
        "    def __init__(self, options):\n"
        "        self.file, self.token = Path(options['file']), options['token']\n"
        "    def insert(self, row, change):\n"
        "        with self.file.open('a') as file:\n"
        "            print(row['id'], len(self.token), repr(self.token), file=file)\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    yield "other"
    sys.modules.pop("other_producer", None)


OTHER = """
[[pipe]]
name = "other"
tables = ["acme/shop"]
producer = "other"
options = { file = "FOLDER/ids", token = "file:FOLDER/token" }
"""


def test_a_producer_when_another_package_has_it_as_an_entry_point_then_a_pipe_names_it(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    held.cut((ORDERS, [insert(**row(1))]))
    (tmp_path / "token").write_text("hunter2\n")
    assert run(monkeypatch, write(held, tmp_path, OTHER)) == 0
    assert (tmp_path / "ids").read_text() == "1 7 Secret(***)\n"
    of_class = OTHER.replace('producer = "other"', 'producer = "other_producer:Ids"').replace('"other"', '"class"')
    assert run(monkeypatch, write(held, tmp_path, of_class)) == 0
    assert (tmp_path / "ids").read_text() == "1 7 Secret(***)\n" * 2
    own = OTHER.replace('producer = "other"', 'producer = "mysql"')
    assert run(monkeypatch, write(held, tmp_path, own)) == PluginInvalid.exit_code, "nobody else has its name"
    wrong = OTHER.replace('producer = "other"', 'producer = "json:nothing"')
    assert run(monkeypatch, write(held, tmp_path, wrong)) == PluginInvalid.exit_code


def test_a_status_when_its_file_is_damaged_then_it_says_so(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(held, tmp_path, FILES, STDOUT)
    for text in ("{", "[]", '{"format": 2}'):
        (tmp_path / "positions/files").mkdir(parents=True, exist_ok=True)
        (tmp_path / "positions/files/status.json").write_text(text)
        assert run(monkeypatch, file, "--status") == 0
        said = capsys.readouterr().out.splitlines()
        assert "not running (unknown)" in said[1] and "never ran" in said[2]
        assert said[3].startswith("files: status.json can't be read: ")


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("then", "comes"),
    [("a backup", [2, 3, 4]), ("no position", [1, 2, 3, 4]), ("another run", []), ("as it was", [3, 4])],
)
def test_a_target_when_it_has_another_position_after_a_failure_then_its_pipe_goes_on_from_there(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, comes: list[int]
) -> None:
    write(held, tmp_path, CACHE.replace('"state"', '"beginning"'))
    config = read_config(tmp_path / "pipes.toml")
    cache, copy = tmp_path / "cache.sqlite", tmp_path / "copy.sqlite"
    stop = threading.Event()
    held.cut((ORDERS, [insert(**row(1))]))
    pipe = prepare(config, config.pipes[0])
    follower = pipe.follower
    assert follower.turn(stop)
    copied(cache, copy)
    held.cut((ORDERS, [insert(**row(2))]))
    assert follower.turn(stop) and not follower.turn(stop)
    held.cut((ORDERS, [insert(**row(3))]))

    def fails(self: RowCache, transaction: object) -> None:
        raise OSError("away")

    with monkeypatch.context() as patch:
        patch.setattr(RowCache, "begin", fails)
        assert follower.turn(stop) and follower.failures == 1 and follower.step is not None
    held.cut((ORDERS, [insert(**row(4))]))
    if then == "a backup":
        copied(copy, cache)
    elif then == "no position":
        with closing(sqlite3.connect(cache)) as emptied, emptied:
            emptied.execute("DELETE FROM rows")
            emptied.execute("DELETE FROM position")
    elif then == "another run":
        other = prepare(replace(config, positions=tmp_path / "elsewhere"), config.pipes[0])
        assert other.follower.turn(stop)
        other.close()
    real, told = RowCache.insert, list[int]()

    def tells(self: RowCache, values: dict[str, int], change: Change) -> None:
        told.append(values["id"])
        real(self, values, change)

    monkeypatch.setattr(RowCache, "insert", tells)
    while follower.turn(stop):
        pass
    assert cached(cache, ORDERS) == held.rows(ORDERS)
    assert told == comes
    pipe.close()


def copied(file: Path, to: Path) -> None:
    with closing(sqlite3.connect(file)) as read, closing(sqlite3.connect(to)) as written:
        read.backup(written)


@pytest.mark.parametrize("raised", [ConnectionResetError, BrokenPipeError])
def test_errors_of_the_store_when_a_pipe_meets_one_then_its_policy_decides(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: type[OSError]
) -> None:
    held.cut((ORDERS, [insert(**row(1))]))
    file = write(held, tmp_path, FILES, 'on_error = "stop"\n', CACHE)
    real, failed = following.Feed.next, list[int]()

    def next_(self: following.Feed) -> object:
        if self.wants(ID) and len(failed) == 0 and not str(self._fields).count("native"):
            failed.append(1)
            raise raised
        return real(self)

    monkeypatch.setattr(following.Feed, "next", next_)
    assert run(monkeypatch, file) == SinkError.exit_code
    assert cached(tmp_path / "cache.sqlite", ORDERS) == held.rows(ORDERS)
    assert "LAKE_STORAGE_FAILED" in (tmp_path / "positions/files/status.json").read_text()
