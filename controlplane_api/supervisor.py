"""Supervising the processes of `menura up`: started together, restarted when one dies, stopped together.

Comes in: commands and how to see that each is up. Goes out: running processes, each in a session of its own
with its log in a file. A death before all are up ends everything, since then a setting is wrong; later
it is restarted, more slowly each time it dies soon. A kill of the supervisor ends its processes (`die_with_parent`).
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from controlplane_api.errors import ComponentFailed

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
UP_SECONDS = 60
STOP_SECONDS = 10
FIRST_BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 30.0
#: one that lived this long begins again with the first backoff
STEADY_SECONDS = 60
TAIL_BYTES = 4096


@dataclass(slots=True)
class Component:
    name: str
    #: of `menura`
    arguments: Sequence[str]
    log: Path
    #: whether it serves; asked until it says yes once
    is_up: Callable[[], bool]
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0
    backoff_seconds: float = FIRST_BACKOFF_SECONDS
    #: when to start it again, by the monotonic clock
    due_at: float = field(default=0, init=False)

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "controlplane_api.die_with_parent", str(os.getpid()), *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started_at = time.monotonic()

    def exit_code(self) -> int | None:
        return self.process.poll() if self.process is not None else None

    def last_words(self) -> str:
        """The last line of its log."""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
            lines = log.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else "it said nothing"


class Supervisor:
    def __init__(self, components: Sequence[Component], stop: threading.Event) -> None:
        self._components = components
        self._stop = stop

    def start(self) -> bool:
        """Start all and wait until all are up; False when asked to stop before. Raises `ComponentFailed`."""
        for component in self._components:
            component.start()
        waiting = list(self._components)
        deadline = time.monotonic() + UP_SECONDS
        while waiting:
            for component in self._components:
                if (code := component.exit_code()) is not None:
                    raise ComponentFailed(
                        f"starting the {component.name}",
                        f"it ended with exit code {code}: {component.last_words()}",
                        data="Everything was stopped again.",
                        remedy=f"Its log is {component.log}.",
                    )
            waiting = [component for component in waiting if not component.is_up()]
            if waiting and time.monotonic() > deadline:
                raise ComponentFailed(
                    f"starting the {waiting[0].name}",
                    f"it did not come up within {UP_SECONDS} seconds",
                    data="Everything was stopped again.",
                    remedy=f"Its log is {waiting[0].log}.",
                )
            if self._stop.wait(POLL_SECONDS):
                return False
        return True

    def run(self) -> None:
        """Keep all running until asked to stop."""
        while not self._stop.wait(POLL_SECONDS):
            for component in self._components:
                self._tend(component)

    def stop(self) -> None:
        """Ask all to end, and kill what does not; nothing of them is left afterwards."""
        running = [component for component in self._components if component.process is not None]
        for component in running:
            _signal(component, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        for component in running:
            assert component.process is not None
            try:
                component.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                logger.warning("killing a component that does not stop: component=%s", component.name)
        for component in running:
            _kill_session(component)

    def _tend(self, component: Component) -> None:
        now = time.monotonic()
        if component.process is None:
            if now >= component.due_at:
                component.start()
                logger.info("component restarted: component=%s", component.name)
            return
        code = component.exit_code()
        if code is None:
            return
        _kill_session(component)  # what it had started
        component.process = None
        steady = now - component.started_at >= STEADY_SECONDS
        delay = FIRST_BACKOFF_SECONDS if steady else component.backoff_seconds
        component.backoff_seconds = min(delay * 2, MAX_BACKOFF_SECONDS)
        component.due_at = now + delay
        logger.error(
            "component died, restarting: component=%s exit_code=%d delay_seconds=%.0f log=%s last=%s",
            component.name,
            code,
            delay,
            component.log,
            component.last_words(),
        )


def _signal(component: Component, number: signal.Signals) -> None:
    if component.process is not None and component.process.poll() is None:
        component.process.send_signal(number)


def _kill_session(component: Component) -> None:
    """Kill the process group, which outlives its first process as long as a child of it lives."""
    if component.process is None:
        return
    with suppress(ProcessLookupError):
        os.killpg(component.process.pid, signal.SIGKILL)
    component.process.wait()
