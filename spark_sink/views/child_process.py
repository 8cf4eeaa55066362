"""Processes that are started for views: how they end, and what is said of that.

Comes in: a command, and a folder that is its working folder. Goes out: the process, with pipes for its input and its
answer; it is gone once nobody uses it, whatever happened meanwhile. It has a session of its own, so a terminal's
signals do not reach it; it ends by itself once its input does, so also where whoever started it was killed.
"""

import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Timer
from typing import IO


class Child:
    """A process that was started, within `started`."""

    def __init__(self, process: "subprocess.Popen[bytes]", seconds: float | None) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.given: IO[bytes] = process.stdin
        self.gives: IO[bytes] = process.stdout
        self._process = process
        self._seconds = seconds
        self._is_late = False
        self._timer = Timer(seconds, self._end_late) if seconds is not None else None
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()

    def _end_late(self) -> None:
        self._is_late = True  # before whoever reads its answer can see that it has ended
        self._process.kill()

    def kill(self) -> None:
        self._process.kill()

    def ended(self) -> str:
        """How it has ended, once it is not understood: it is killed where it is still there."""
        is_late = self._is_late
        self._process.kill()
        status = self._process.wait()
        if is_late or status == -signal.SIGXCPU:
            return f"it takes longer than {self._seconds} s"
        said = signal.Signals(-status).name if status < 0 else f"status {status}"
        return f"its process ended ({said}), as where it has no memory"

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._process.kill()
        self._process.wait()
        for pipe in (self.given, self.gives):
            with suppress(BrokenPipeError):  # what was not written yet, to a process that is gone
                pipe.close()


@contextmanager
def started(
    command: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    *,
    seconds: float | None = None,
    says_errors: bool = False,
    holds: Sequence[int] = (),
) -> Iterator[Child]:
    """`seconds`: after which it is killed; `says_errors`: where this process does; `holds`: files it keeps open."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None if says_errors else subprocess.DEVNULL,
        cwd=folder, env=environment, start_new_session=True, pass_fds=holds,
    )  # fmt: skip
    child = Child(process, seconds)
    try:
        yield child
    finally:
        child.end()
