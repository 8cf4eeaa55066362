"""Pipes and plug-ins that fail in a run that is to end: how long they are tried again, and that nothing is lost."""

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_sink import export_command, plugin_command
from spark_sink.errors import ExportOutputFailed, PluginFailed, SinkError, SinkSettingInvalid
from spark_sink.export import following, outputs
from spark_sink.export.feed import Step
from tests.spark_sink.landing import insert
from tests.spark_sink.test_export import ORDERS, Lake, held, lines, row
from tests.spark_sink.test_pipes import CACHE, FILES, run, write
from tests.spark_sink.test_plugins import cached

__all__ = ["held"]

AWAY = ExportOutputFailed("writing an export", "it is away", data="Nothing is out", remedy="Wait")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> list[float]:
    """A clock that goes on to each next try at once."""
    caplog.set_level(logging.INFO, "menura.export")
    found, real = [1000.0], following.Follower._fail
    monkeypatch.setattr(following, "time", SimpleNamespace(monotonic=lambda: found[0]))

    def fails(self: following.Follower[following.Consumer], failure: SinkError) -> None:
        real(self, failure)
        found[0] = max(found[0], self.again_at)

    monkeypatch.setattr(following.Follower, "_fail", fails)
    return found


def messages(caplog: pytest.LogCaptureFixture, level: str) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelname == level]


def waited(warned: list[str]) -> list[list[tuple[str, ...]]]:
    return [re.findall(r"failed (\d+) times, tried again in (\d+) s, for (\d+) s more", each) for each in warned]


WAITED = [
    [(str(number), str(pause), str(left))]
    for number, pause, left in ((1, 1, 100), (2, 2, 99), (3, 4, 97), (4, 8, 93), (5, 16, 85), (6, 32, 69), (7, 37, 37))
]


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_pipe_when_it_fails_for_longer_than_it_may_then_it_says_so_and_ends_and_the_next_run_has_all(
    held: Lake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    now: list[float],
    *,
    comes_back: bool,
) -> None:
    """`comes_back`: what it waits for is there at its last attempt."""
    held.cut((ORDERS, [insert(**row(1)), insert(**row(2))]))
    waits = FILES.replace("out", "taken").replace('name = "files"', 'name = "waits"')
    file, taken, real = write(held, tmp_path, waits, FILES), tmp_path / "taken", following.Follower._begin
    taken.write_text("no folder")

    def begins(self: following.Follower[following.Consumer]) -> None:
        if comes_back and now[0] >= 1100:
            taken.unlink(missing_ok=True)
        real(self)

    monkeypatch.setattr(following.Follower, "_begin", begins)
    code = run(monkeypatch, file, "--retry-seconds", "100")
    warned = messages(caplog, "WARNING")
    assert waited(warned) == WAITED
    assert all("EXPORT_OUTPUT_FAILED" in each and f"{taken}: " in each for each in warned)
    assert [key["id"] for key, _ in lines(tmp_path / "out")] == [1, 2]
    if not comes_back:
        assert code == ExportOutputFailed.exit_code
        (said,) = messages(caplog, "ERROR")
        assert said.startswith("pipe waits stopped after 8 attempts in 100 s, others go on: EXPORT_OUTPUT_FAILED")
        assert said.endswith("What is not out is kept: the next run goes on behind its position")
        assert json.loads((tmp_path / "positions/waits/status.json").read_text())["state"] == "stopped"
        taken.unlink()
        code = run(monkeypatch, file)
    assert code == 0
    assert [key["id"] for key, _ in lines(taken)] == [1, 2]


def test_a_pipe_when_it_goes_on_between_two_failures_then_its_time_begins_anew(
    held: Lake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    now: list[float],
) -> None:
    held.cut((ORDERS, [insert(**row(1))]))
    monkeypatch.setattr(following, "FIRST_PAUSE_SECONDS", 60.0)
    numbers, tried, real = iter([2, 3, 4]), set[int](), outputs.FolderOutput.write

    def writes(self: outputs.FolderOutput, step: Step) -> None:
        if self._folder == tmp_path / "out":
            (cut,) = step.position.cuts.values()
            if cut not in tried:
                tried.add(cut)
                raise AWAY
        real(self, step)
        if self._folder == tmp_path / "out" and (number := next(numbers, None)) is not None:
            held.cut((ORDERS, [insert(**row(number))]))

    monkeypatch.setattr(outputs.FolderOutput, "write", writes)
    assert run(monkeypatch, write(held, tmp_path, FILES), "--retry-seconds", "70") == 0
    assert [key["id"] for key, _ in lines(tmp_path / "out")] == [1, 2, 3, 4]
    assert waited(messages(caplog, "WARNING")) == [[("1", "60", "70")]] * 4
    assert now == [1240.0]


@pytest.mark.parametrize("seconds", ["0", "100"])
def test_a_plugin_when_it_fails_for_longer_than_it_may_then_it_ends_and_the_next_run_tells_it_all(
    held: Lake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    now: list[float],
    seconds: str,
) -> None:
    held.cut((ORDERS, [insert(**row(1))]))
    file = write(held, tmp_path, CACHE.replace("[[pipe]]", "[[plugin]]").replace("producer", "class").replace(
        '"row-cache"', '"spark_sink.plugins.row_cache:RowCache"').replace("ord*", "orders"))  # fmt: skip
    command = ["menura plugin", "run", str(file), "--once"]
    with monkeypatch.context() as patched:
        patched.setattr("spark_sink.plugins.row_cache.RowCache.insert", _raises)
        patched.setattr("sys.argv", [*command, "--retry-seconds", seconds])
        assert plugin_command.main() == PluginFailed.exit_code
    assert waited(messages(caplog, "WARNING")) == (WAITED if seconds == "100" else [])
    (said,) = messages(caplog, "ERROR")
    assert f"stopped after {8 if seconds == '100' else 1} attempts in {seconds} s" in said and "PLUGIN_FAILED" in said
    monkeypatch.setattr("sys.argv", command)
    assert plugin_command.main() == 0
    assert cached(tmp_path / "cache.sqlite", ORDERS) == held.rows(ORDERS)


def _raises(*_arguments: object) -> None:
    raise ValueError("a value of a row")


@pytest.mark.parametrize(
    ("main", "words", "problem"),
    [
        (export_command.main, ["acme/shop", "--lake", "x", "--retry-seconds", "5"], "--retry-seconds without --file"),
        (export_command.main, ["--file", "FILE", "--follow", "--retry-seconds", "5"], "does not end by itself"),
        (plugin_command.main, ["run", "FILE", "--retry-seconds", "5"], "does not end by itself"),
    ],
)
def test_a_time_to_try_again_when_the_run_does_not_end_by_itself_then_it_is_refused(
    held: Lake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    main: Callable[[], int],
    words: list[str],
    problem: str,
) -> None:
    held.cut((ORDERS, [insert(**row(1))]))
    kind = "[[plugin]]" if main is plugin_command.main else "[[pipe]]"
    of_plugin = CACHE.replace("producer", "class").replace('"row-cache"', '"spark_sink.plugins.row_cache:RowCache"')
    file = write(held, tmp_path, of_plugin.replace("[[pipe]]", kind) if kind == "[[plugin]]" else FILES)
    monkeypatch.setattr("sys.argv", ["menura", *(str(file) if word == "FILE" else word for word in words)])
    assert main() == SinkSettingInvalid.exit_code
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("word", ["-1", "inf", "nan", "soon"])
def test_a_time_to_try_again_when_it_is_none_then_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    monkeypatch.setattr("sys.argv", ["menura export", "--file", "x", f"--retry-seconds={word}"])
    with pytest.raises(SystemExit):
        export_command.main()
    assert "--retry-seconds" in capsys.readouterr().err
