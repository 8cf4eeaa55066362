"""What plug-ins are told: transactions in order, each at least once; exactly once where they keep their position."""

import json
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from menura.change_batch import ABSENT

from spark_sink import plugin_command
from spark_sink.errors import ExportOutputFailed, PluginInvalid
from spark_sink.export import following
from spark_sink.export.following import Follower, OnError
from spark_sink.plugins import running
from spark_sink.plugins.configuration import PluginConfig, load, read_config
from spark_sink.plugins.plugin import Change, Plugin, Transaction, Values
from spark_sink.plugins.row_cache import RowCache
from spark_sink.plugins.running import PluginConsumer
from spark_sink.work import TableId
from tests.spark_sink.killing import Killed, kill_at
from tests.spark_sink.landing import Table, Workload, altered, delete, insert, truncate, update
from tests.spark_sink.test_export import ORDERS, Dumps, Lake, held, row

__all__ = ["held"]

TYPED = Table(
    "typed",
    {
        "id": pa.uint64(),
        "day": pa.date32(),
        "at": pa.timestamp("us"),
        "seen": pa.timestamp("us", "UTC"),
        "b": pa.binary(),
    },
)


class Told(Plugin):
    """Writes down its calls; fails where it is told to."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.fails: Callable[[tuple[Any, ...]], bool] = lambda _: False

    def _tell(self, *call: Any) -> None:
        self.calls.append(call)
        if self.fails(call):
            raise ValueError("a value of a row")

    def ddl(self, table: TableId, columns: Mapping[str, str], key: Sequence[str]) -> None:
        self._tell("ddl", table.table, tuple(columns))

    def begin(self, transaction: Transaction) -> None:
        self._tell("begin", transaction.id)

    def insert(self, row: Values, change: Change) -> None:
        self._tell("insert", row["id"])

    def update_before(self, row: Values, change: Change) -> None:
        self._tell("before", row["id"])

    def update_after(self, row: Values, change: Change) -> None:
        self._tell("after", row["id"])

    def delete(self, row: Values, change: Change) -> None:
        self._tell("delete", row["id"])

    def truncate(self, change: Change) -> None:
        self._tell("truncate", change.table.table)

    def commit(self, transaction: Transaction, gsn: int) -> None:
        self._tell("commit", transaction.id)

    def rollback(self, transaction: Transaction) -> None:
        self._tell("rollback", transaction.id)

    def checkpoint(self, position: str) -> None:
        self._tell("checkpoint")

    def close(self) -> None:
        self._tell("close")


def config(kind: type[Plugin] = Told, name: str = "told", **more: Any) -> PluginConfig:
    class_name = f"{kind.__module__}:{kind.__name__}"
    facts = {"tables": ("acme/shop",), "begin": "beginning", "on_error": OnError.RETRY, "options": {}} | more
    return PluginConfig(name, class_name, **facts)


def run(held: Lake, folder: Path, *plugins: Follower[PluginConsumer]) -> int:
    return following.follow(plugins, threading.Event(), None)


def started(held: Lake, folder: Path, wanted: PluginConfig) -> Follower[PluginConsumer]:
    return plugin_command.prepare(str(held.folder), folder / wanted.name, wanted)


def calls(of: Follower[PluginConsumer]) -> list[tuple[Any, ...]]:
    assert isinstance(of.consumer.delivery.plugin, Told)
    return of.consumer.delivery.plugin.calls


def kinds(of: Follower[PluginConsumer]) -> list[str]:
    return [call[0] for call in calls(of)]


def test_a_plugin_when_transactions_come_then_it_is_told_of_each_in_order_and_of_columns_before(
    held: Lake, tmp_path: Path
) -> None:
    held.cut((ORDERS, [insert(**row(1)), insert(**row(2))]))
    held.cut((ORDERS, [update(row(1), row(1, "b")), delete(**row(2))]))
    told = started(held, tmp_path, config())
    assert run(held, tmp_path, told) == 0
    names = [call[:2] for call in calls(told)]
    assert names[0] == ("ddl", "orders")
    assert names[-2:] == [("checkpoint",), ("close",)]
    rows = [call for call in names if call[0] in ("insert", "before", "after", "delete")]
    assert rows == [("insert", 1), ("insert", 2), ("before", 1), ("after", 1), ("delete", 2)]
    begun = [call[1] for call in names if call[0] == "begin"]
    assert begun == [call[1] for call in names if call[0] == "commit"] and len(set(begun)) == 2

    held.cut(truncate(ORDERS))
    again = started(held, tmp_path, config())
    run(held, tmp_path, again)
    assert kinds(again) == ["ddl", "begin", "truncate", "commit", "checkpoint", "close"]
    nothing = started(held, tmp_path, config())
    run(held, tmp_path, nothing)
    assert kinds(nothing) == ["close"]


def test_a_plugin_when_a_call_fails_then_the_transaction_is_rolled_back_and_told_again_and_others_go_on(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "FIRST_PAUSE_SECONDS", 0.0)
    for number in (1, 2, 3):
        held.writer.cut((ORDERS, [insert(**row(number))]))
    held.follow()
    failing, other = started(held, tmp_path, config(name="failing")), started(held, tmp_path, config(name="other"))
    assert isinstance(failing.consumer.delivery.plugin, Told)
    failing.consumer.delivery.plugin.fails = lambda call: call == ("insert", 2) and calls(failing).count(call) < 3
    assert run(held, tmp_path, failing, other) == 0
    assert [call[1] for call in calls(failing) if call[0] == "insert"] == [1, 2, 1, 2, 1, 2, 3]
    assert kinds(failing).count("rollback") == 2 and kinds(failing).count("commit") == 5
    assert [call[1] for call in calls(other) if call[0] == "insert"] == [1, 2, 3]


@pytest.mark.parametrize("failing_call", ["ddl", "begin", "commit", "checkpoint"])
def test_a_plugin_when_it_is_to_stop_at_a_failure_then_it_begins_there_again_and_the_exit_code_says_so(
    held: Lake, tmp_path: Path, failing_call: str, caplog: pytest.LogCaptureFixture
) -> None:
    held.cut((ORDERS, [insert(**row(1))]))
    wanted = config(name="failing", on_error=OnError.STOP)
    failing, other = started(held, tmp_path, wanted), started(held, tmp_path, config(name="other"))
    assert isinstance(failing.consumer.delivery.plugin, Told)
    failing.consumer.delivery.plugin.fails = lambda call: call[0] == failing_call
    assert run(held, tmp_path, failing, other) == 4
    assert "PLUGIN_FAILED" in caplog.text and f"{failing_call} raised ValueError at test_plugins.py:" in caplog.text
    assert "a value of a row" not in caplog.text
    assert kinds(other)[-2:] == ["checkpoint", "close"]
    failing = started(held, tmp_path, wanted)
    run(held, tmp_path, failing)
    assert kinds(failing) == ["ddl", "begin", "insert", "commit", "checkpoint", "close"]


def cached(file: Path, table: Table) -> list[str]:
    held = sqlite3.connect(file)
    found = held.execute('SELECT row FROM rows WHERE "table" = ?', (f"acme/shop/{table.database}/{table.name}",))
    rows = [json.loads(text) for (text,) in found]
    held.close()
    return sorted(repr([_value(table, name, each[name]) for name in table.columns]) for each in rows)


def _value(table: Table, name: str, value: Any) -> Any:
    return Decimal(value) if table.columns[name] == pa.uint64() and value is not None else value


@pytest.mark.history
@pytest.mark.parametrize("begin", ["beginning", "state"])
def test_a_cache_when_its_run_is_killed_anywhere_then_it_has_each_row_as_it_is(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: str
) -> None:
    work, file = Workload(7), tmp_path / "cache.sqlite"
    held.cut((ORDERS, work.orders.follow([insert(**row(0, "a"))])))
    dumps = Dumps(work, held)
    wanted = config(RowCache, "cache", begin=begin, options={"file": str(file)})
    places = [(RowCache, "insert", 2), (RowCache, "begin", 1), (RowCache, "checkpoint", 1), (RowCache, "position", 1),
              (running.Keeps, "write", 1), (RowCache, "delete", 1)]  # fmt: skip
    killed = 0
    for number in range(9):
        work.cut(held.writer)
        for _ in range(2):
            held.writer.cut(*dumps.step())
        held.follow()
        with monkeypatch.context() as patched:
            kill_at(patched, *places[number % len(places)])
            try:
                run(held, tmp_path, started(held, tmp_path, wanted))
            except Killed:
                killed += 1
        if number % 3:
            run(held, tmp_path, started(held, tmp_path, wanted))
            assert cached(file, ORDERS) == held.rows(ORDERS)
    assert killed > 4


def test_a_value_when_it_reaches_a_plugin_then_it_is_pythons(held: Lake, tmp_path: Path) -> None:
    seen: list[Values] = []

    class Seen(Told):
        def insert(self, row: Values, change: Change) -> None:
            seen.append(row)
            assert change.key == {"id": row["id"]}

    at = datetime(2026, 1, 2, 3, 4, 5, 6)  # noqa: DTZ001  (of a column without a zone)
    values = {"id": 2**63, "day": date(2026, 1, 2), "at": at, "seen": at.replace(tzinfo=UTC), "b": b"\0\xff"}
    held.cut((TYPED, [insert(**values)]))
    told = started(held, tmp_path, config())
    told.consumer.delivery.plugin = Seen({})
    run(held, tmp_path, told)
    assert seen == [values]


def test_a_plugin_when_columns_change_then_it_is_told_of_them_once(held: Lake, tmp_path: Path) -> None:
    wider = Table("orders", ORDERS.columns | {"more": pa.string()})
    held.cut((ORDERS, [insert(**row(1))]))
    told = started(held, tmp_path, config())
    run(held, tmp_path, told)
    held.cut(altered(wider, added={"more": None}), (wider, [insert(**row(2), more="x")]))
    held.cut((wider, [insert(**row(3), more="x")]))
    run(held, tmp_path, told)
    assert [call for call in calls(told) if call[0] == "ddl"] == [
        ("ddl", "orders", tuple(ORDERS.columns)), ("ddl", "orders", tuple(wider.columns)),
    ]  # fmt: skip


def test_a_plugin_when_it_is_stopped_between_transactions_then_what_is_not_behind_a_checkpoint_comes_again(
    held: Lake, tmp_path: Path
) -> None:
    for number in (1, 2, 3):
        held.writer.cut((ORDERS, [insert(**row(number))]))
    held.follow()
    told, stop = started(held, tmp_path, config()), threading.Event()
    assert isinstance(told.consumer.delivery.plugin, Told)
    told.consumer.delivery.plugin.fails = lambda call: call == ("insert", 2) and stop.set() is not None
    following.follow([told], stop, None)
    assert kinds(told)[-2:] == ["commit", "close"] and ("insert", 3) not in calls(told)
    again = started(held, tmp_path, config())
    run(held, tmp_path, again)
    assert [call[1] for call in calls(again) if call[0] == "insert"] == [1, 2, 3]


def test_a_run_when_another_one_has_the_folder_then_is_refused(held: Lake, tmp_path: Path) -> None:
    held.cut((ORDERS, [insert(**row(1))]))
    first = started(held, tmp_path, config())
    with pytest.raises(ExportOutputFailed):
        started(held, tmp_path, config())
    assert first.step is None


def test_a_cache_when_its_checkpoint_raises_though_it_is_durable_then_nothing_is_told_twice_and_the_run_ends(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "FIRST_PAUSE_SECONDS", 0.0)
    held.cut((ORDERS, [insert(**row(1))]))
    cache = started(held, tmp_path, config(RowCache, options={"file": str(tmp_path / "cache.sqlite")}))
    real, told = RowCache.checkpoint, list[str]()

    def raises_once(self: RowCache, position: str) -> None:
        real(self, position)
        told.append(position)
        raise OSError("the answer was lost")

    monkeypatch.setattr(RowCache, "checkpoint", raises_once)
    assert run(held, tmp_path, cache) == 0
    assert len(told) == 1
    assert cached(tmp_path / "cache.sqlite", ORDERS) == held.rows(ORDERS)


def test_a_row_when_it_gets_another_key_and_the_log_lacks_a_value_then_the_cache_stops_rather_than_lose_it(
    held: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held.cut((ORDERS, [insert(**row(1, "kept"))]))
    wanted = config(RowCache, on_error=OnError.STOP, options={"file": str(tmp_path / "cache.sqlite")})
    assert run(held, tmp_path, started(held, tmp_path, wanted)) == 0
    held.cut((ORDERS, [update(row(1, "kept"), row(2) | {ABSENT: ("note",)})]))
    assert run(held, tmp_path, started(held, tmp_path, wanted)) == 4
    assert "got another key" in caplog.text and "does not have its note" in caplog.text
    assert "kept" in cached(tmp_path / "cache.sqlite", ORDERS)[0]


FILE = """
lake = "LAKE"
positions = "positions"
[[plugin]]
name = "cache"
class = "spark_sink.plugins.row_cache:RowCache"
tables = ["acme/shop"]
options = { file = "cache.sqlite" }
"""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("lake = ", "Invalid value"),
        (FILE.replace("lake =", "lakes ="), "lakes: unknown; known are lake, plugin, positions"),
        (FILE.replace('lake = "LAKE"', ""), "lake is missing"),
        (FILE.replace('"LAKE"', "1"), "lake is no text"),
        (FILE.partition("[[")[0], "plugin is missing"),
        (FILE.replace("[[plugin]]", "[plugin]"), "it names no plug-in"),
        (FILE + FILE.partition("[[")[2].join(["[[", ""]), "two plug-ins have one name"),
        (FILE.replace('"cache"', '"../x"'), "the name '../x'"),
        (FILE.replace(":RowCache", ""), "is not MODULE:CLASS"),
        (FILE.replace('["acme/shop"]', '"acme"'), "tables of cache"),
        (FILE.replace('"cache.sqlite"', "1"), "options of cache are not texts"),
        (FILE + 'from = "then"\n', "use beginning, state, newest"),
        (FILE + 'on_error = "skip"\n', "'skip' is not a valid OnError"),
    ],
)
def test_a_file_when_it_is_wrong_then_the_error_says_where(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "plugins.toml").write_text(text)
    with pytest.raises(PluginInvalid, match=problem):
        read_config(tmp_path / "plugins.toml")


@pytest.mark.parametrize(
    ("class_name", "problem"),
    [
        ("nowhere:Class", "ModuleNotFoundError"),
        ("json:nothing", "AttributeError"),
        ("builtins:dict", "is no subclass"),
        ("spark_sink.plugins.row_cache:RowCache", "the option file is missing"),
    ],
)
def test_a_class_when_it_can_not_be_loaded_then_the_error_says_why(class_name: str, problem: str) -> None:
    with pytest.raises(PluginInvalid, match=problem):
        load(PluginConfig("cache", class_name, ("acme/shop",), "state", OnError.RETRY, {}))


def test_the_command_when_it_runs_once_then_plugins_have_all_that_is_there(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held.cut((ORDERS, [insert(**row(1)), insert(**row(2))]))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plugins.toml").write_text(FILE.replace("LAKE", str(held.folder)))
    monkeypatch.setattr("sys.argv", ["menura plugin", "run", "plugins.toml", "--once"])
    assert plugin_command.main() == 0
    assert cached(tmp_path / "cache.sqlite", ORDERS) == held.rows(ORDERS)
    (tmp_path / "plugins.toml").write_text(FILE.replace("LAKE", str(tmp_path / "nowhere")))
    assert plugin_command.main() != 0
    assert "TABLE_NOT_IN_LAKE" in capsys.readouterr().err
