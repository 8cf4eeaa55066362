"""Writers: transactions over all tables, rate-limited, each of several changes of several tables.

A writer knows nothing of what DDL makes of the tables: it asks for their columns each time one of its statements is
refused.
"""

import random
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field

from tests.churn.kind import Dice, Kind, Session, Shape
from tests.live_source import LiveSource

WRITERS = 4


@dataclass
class Done:
    """What the writers did."""

    transactions: int = 0
    refused: int = 0
    failures: list[Exception] = field(default_factory=list)


class Workload:
    """Writers that run until `stop`, with so many transactions a second between them."""

    def __init__(self, kind: Kind, source: LiveSource, shapes: Mapping[str, Shape], seed: int, rate: float) -> None:
        self.done = Done()
        self._kind = kind
        self._source = source
        self._shapes = shapes
        self._pause = WRITERS / rate
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{seed} {name}"),), name=f"writer {name}")
            for name in range(WRITERS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, dice: Dice) -> None:
        try:
            with closing(self._kind.session(self._source)) as session:
                columns = session.columns(self._shapes)
                due = time.monotonic()
                while not self._stop.is_set():
                    if not self._try(session, self._kind.transaction(dice, self._shapes, columns)):
                        columns = session.columns(self._shapes)
                    due = max(due + self._pause, time.monotonic() - 1)
                    self._stop.wait(max(0.0, due - time.monotonic()))
        except Exception as failure:  # noqa: BLE001  (a thread's top: raised by whoever waits for it)
            self.done.failures.append(failure)

    def _try(self, session: Session, packets: list[str]) -> bool:
        try:
            for packet in packets:
                session.run(packet)
        except self._kind.errors as met:
            if not self._kind.is_meeting(met):
                raise
            with self._lock:
                self.done.refused += 1
            return False
        with self._lock:
            self.done.transactions += 1
        return True
