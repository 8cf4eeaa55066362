"""What started the agent as a service, as systemd does, hears how it is: sd_notify(3), the datagrams of NOTIFY_SOCKET.

Comes in: the environment, and what a thread of its own has seen last of the agent: what it is doing, whether it moves.
Goes out: READY once the sources have been asked, STATUS when it changes, WATCHDOG at each turn in which the agent moves
and was looked at lately, STOPPING. Whoever tells it takes no lock of the agent. One that does not move is not vouched
for, and the service manager starts it anew. Nothing is durable: the next process reads on from the last committed cut.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from menura.errors import printable

from agent.runtime.ending import stacks

log = logging.getLogger("menura.service")

#: of a status line
MOST_STATUS_CHARS = 200
TURN_SECONDS = 5.0
#: since the agent was last looked at; a look that takes longer waits for a lock that nobody lets go
MOST_LOOK_SECONDS = 30.0
#: that the start may take after each part of it that is told
START_SECONDS = 300
#: one who does not read must not hold up the agent
SEND_SECONDS = 1.0


class Supervised(Protocol):
    def status(self) -> str:
        """What it is doing, in a few words; asks each part that has a lock."""

    def moves(self) -> bool:
        """Whether its parts have got on lately."""


@dataclass(frozen=True, slots=True)
class Look:
    status: str
    moves: bool
    #: by the monotonic clock
    at_seconds: float


class Looking:
    """Looks at the agent again and again, in a thread: it takes the agent's locks, and may wait for one for ever."""

    def __init__(self, supervised: Supervised, stopping: threading.Event, turn_seconds: float) -> None:
        self._supervised = supervised
        self._stopping = stopping
        self._turn_seconds = turn_seconds
        self._last = Look("", True, time.monotonic())
        threading.Thread(target=self._run, name="looking", daemon=True).start()

    def last(self) -> Look:
        """One that is too long ago moves no more."""
        look = self._last
        return replace(look, moves=look.moves and time.monotonic() - look.at_seconds < MOST_LOOK_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            status, moves = self._supervised.status(), self._supervised.moves()
            self._last = Look(printable(status)[:MOST_STATUS_CHARS], moves, time.monotonic())
            self._stopping.wait(self._turn_seconds)


@dataclass(slots=True)
class ServiceManager:
    """Whoever reads the socket; none where `address` is empty."""

    address: str = ""
    #: it is told at least as often, else it kills the process; 0: it does not watch
    watchdog_seconds: float = 0.0
    #: what was to be told last did not reach it
    _is_deaf: bool = field(default=False, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, environment: Mapping[str, str], pid: int) -> "ServiceManager":
        """
        >>> ServiceManager.of({"NOTIFY_SOCKET": "/run/s", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7"}, 7)
        ServiceManager(address='/run/s', watchdog_seconds=3.0)
        """
        watched_us = environment.get("WATCHDOG_USEC", "0")
        is_watched = (
            watched_us.isascii() and watched_us.isdigit() and environment.get("WATCHDOG_PID", str(pid)) == str(pid)
        )
        return cls(environment.get("NOTIFY_SOCKET", ""), int(watched_us) / 1e6 if is_watched else 0.0)

    def tell(self, *states: str) -> bool:
        """Each is KEY=VALUE. Whether it was told; what can't be is logged once, and the agent works all the same."""
        if not self.address:
            return False
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        was_deaf, self._is_deaf = self._is_deaf, False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(SEND_SECONDS)
                sender.connect(address)  # else it is writable, by its own buffer, while the manager's is full
                sender.send("\n".join(states).encode())
        except OSError as refused:
            self._is_deaf = True
            if not was_deaf:
                fields = {"socket": self.address, "found": refused.strerror or type(refused).__name__, "states": states}
                log.warning("the service manager is not told", extra={"fields": fields})
        return not self._is_deaf

    def starts(self) -> None:
        """A part of the start is done: however many there are, the rest may take its time."""
        self.tell(f"EXTEND_TIMEOUT_USEC={START_SECONDS * 1_000_000}")

    def follow(self, stopping: threading.Event, supervised: Supervised) -> None:
        """Until `stopping`, in the caller's thread; says STOPPING at the end."""
        if not self.address:
            stopping.wait()
            return
        turn_seconds = min(TURN_SECONDS, self.watchdog_seconds / 3) if self.watchdog_seconds else TURN_SECONDS
        looking = Looking(supervised, stopping, turn_seconds)
        owed, told, is_stuck = ["READY=1"], "", False
        while not stopping.is_set():
            look = looking.last()
            was_stuck, is_stuck = is_stuck, not look.moves
            if is_stuck and not was_stuck:
                _report_stuck()
            status = f"does not move; {look.status}" if is_stuck else look.status
            states = owed + ([f"STATUS={status}"] if status != told else [])
            if self.watchdog_seconds and not is_stuck:
                states.append("WATCHDOG=1")
            if states and self.tell(*states):
                owed, told = [], status
            stopping.wait(turn_seconds)
        self.tell("STOPPING=1")


def _report_stuck() -> None:
    fields = {
        "data": "Nothing is lost: the log is read again from the last committed cut",
        "remedy": "Where the service has a watchdog it is started anew; report this line as a bug",
        "threads": stacks(),
    }
    log.error("the agent does not move", extra={"fields": fields})


def service_manager() -> ServiceManager:
    """Of this process."""
    return ServiceManager.of(os.environ, os.getpid())
