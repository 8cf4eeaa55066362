"""Folders of views' turns: gone with their process, and after SIGKILL with the next one; nobody else's ever goes."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_sink.views import scratch
from spark_sink.views.engine import engine
from spark_sink.views.scratch import remove_left, scratch_folder
from tests.servers import ROOT
from tests.stack import wait_for

#: writes more than its memory holds, so that its folder has files, and waits
TURN = """
import sys
from spark_sink.views.engine import engine
with engine(memory_bytes=64 << 20) as sql:
    sql.keep("a", "SELECT i, repeat('x', 100) AS t FROM range(2000000) r(i)")
    print("begun", flush=True)
    sys.stdin.read()
"""
#: starts a process in its folder, which holds its lock too
QUERY = """
import sys
from spark_sink.views.child_process import started
from spark_sink.views.scratch import scratch_folder
with scratch_folder() as (folder, lock), started(["sleep", "1000"], folder, {}, holds=[lock]):
    print("begun", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(folder))
    return folder


@contextmanager
def running(code: str, temporary: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that has its folder."""
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            assert "begun\n" in process.stdout  # the engine prints how far it is
            yield process
        finally:
            process.kill()


def test_a_folder_when_its_process_is_killed_then_the_next_one_removes_it_and_none_of_others(temporary: Path) -> None:
    with running(TURN, temporary) as killed:
        (left,) = temporary.iterdir()
        assert list(left.iterdir()) != []
        with running(TURN, temporary) as alive:
            (other,) = set(temporary.iterdir()) - {left}
            killed.kill()
            killed.wait()
            assert left.exists()
            with running(TURN, temporary):
                assert not left.exists()
                assert list(other.iterdir()) != []
                assert len(list(temporary.iterdir())) == 2
            assert alive.poll() is None
            alive.communicate("")
            assert alive.returncode == 0
            assert not other.exists()
    remove_left()
    assert list(temporary.iterdir()) == []


def test_a_folder_when_a_process_that_was_started_there_is_alive_then_it_stays(temporary: Path) -> None:
    with running(QUERY, temporary) as process:
        (folder,) = temporary.iterdir()
        query = wait_for("query", lambda: _within(folder))
        process.kill()
        process.wait()
        remove_left()
        assert folder.exists()
        os.kill(query, signal.SIGKILL)

        def is_removed() -> bool | None:
            remove_left()
            return not folder.exists() or None

        wait_for("folder that goes with its last process", is_removed)


def _within(folder: Path) -> int | None:
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if (each / "cwd").readlink() == folder:
                return int(each.name)
        except OSError:
            continue
    return None


def test_folders_when_they_are_somebody_elses_or_no_folders_then_they_stay(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, target = temporary / "menura-view-scratch-other", temporary / "target"
    for folder in (other, target, temporary / "menura-view-stores-0"):
        folder.mkdir()
        (folder / "file").touch()
    (temporary / "menura-view-scratch-link").symlink_to(target)
    (temporary / "menura-view-scratch-file").touch()
    before = sorted(temporary.rglob("*"))
    uid = os.geteuid()
    with monkeypatch.context() as patched:
        patched.setattr(scratch.os, "geteuid", lambda: uid + 1)
        remove_left()
    assert sorted(temporary.rglob("*")) == before
    remove_left()
    assert sorted(set(before) - set(temporary.rglob("*"))) == [other, other / "file"]


def test_a_folder_when_it_is_taken_for_a_left_one_before_it_is_locked_then_another_one_is_made(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, made = scratch.tempfile.mkdtemp, []

    def removed_at_once(*, prefix: str) -> str:
        made.append(real(prefix=prefix))
        if len(made) == 1:
            remove_left()
        return made[-1]

    monkeypatch.setattr(scratch.tempfile, "mkdtemp", removed_at_once)
    with scratch_folder() as (folder, _):
        assert len(made) == 2
        assert [str(each) for each in temporary.iterdir()] == [folder] == made[1:]


def test_folders_when_their_file_system_has_no_locks_then_that_is_said_and_none_is_left(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no locks here")

    monkeypatch.setattr(scratch.fcntl, "flock", refuse)
    with pytest.raises(OSError, match="can't be locked"), scratch_folder():
        pass
    assert list(temporary.iterdir()) == []


def test_an_engine_when_its_turn_fails_then_its_folder_goes(temporary: Path) -> None:
    with pytest.raises(ZeroDivisionError), engine():
        assert len(list(temporary.iterdir())) == 1
        raise ZeroDivisionError
    assert list(temporary.iterdir()) == []
