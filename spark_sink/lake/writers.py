"""One sink writes a lake: the newest one, by a number that each takes when it starts.

Comes in: the lake's address. Goes out: a sink's number, durable as `_menura/writers/NUMBER.json`, which is put if
absent; or the error that names a newer sink. The number is taken once nothing else would keep the sink from starting,
and is looked at before each batch, retry and merge, and each `LOOK_SECONDS` while there is none.

A sink that learns of it in the middle of a batch ends the batch. That is harmless: both follow one landing, a table's
commits carry the cut, and one that meets another's is read anew and finds its work done. A kill leaves a number that
nobody uses. A store without conditional puts may give two sinks one number; it takes one sink alone.
"""

import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from menura.instants import instant_text, now_us
from menura.stores.store import OutcomeUnknown, Store

from spark_sink.errors import LakeRecordsUnwritable, LakeTaken
from spark_sink.landed.storage import open_storage

WRITERS_FOLDER = "_menura/writers"
LOOK_SECONDS = 10.0
#: files of earlier sinks that stay
KEPT = 10
_ATTEMPTS = 100


@dataclass(slots=True)
class LakeWriter:
    """This process as a sink of a lake."""

    lake: str
    open_store: Callable[[str], Store] = open_storage
    #: taken; 0: not yet
    number: int = 0
    _run: str = field(default_factory=lambda: secrets.token_hex(16))
    _looked_at: float = 0.0

    def take(self) -> None:
        """Be the lake's sink from now on; one that has been it must still be it.

        Raises `LakeTaken`, `LakeRecordsUnwritable`.
        """
        if self.number:
            self.check()
            return
        with self._using():
            self.number = self._take(self.open_store(self.lake))

    def _take(self, store: Store) -> int:
        document = json.dumps(
            {"format": 1, "host": socket.gethostname(), "pid": os.getpid(), "at_us": now_us(), "run": self._run}
        ).encode()
        for _ in range(_ATTEMPTS):
            number = max(_numbers(store), default=0) + 1
            try:
                written = store.put_if_absent(_path(number), document)
            except OutcomeUnknown:
                written = False
            if written or store.read(_path(number)) == document:
                found = _numbers(store)
                if max(found) - number >= KEPT:
                    continue  # it was another's, and came and went meanwhile
                store.delete([_path(former) for former in found if former <= number - KEPT])
                return number
        raise OSError(5, f"{WRITERS_FOLDER} took no number in {_ATTEMPTS} attempts")

    def check(self) -> None:
        """Raises `LakeTaken` where a newer sink has started than this one, which has; `LakeRecordsUnwritable`."""
        self._looked_at = time.monotonic()
        with self._using():
            store = self.open_store(self.lake)
            newest = max(_numbers(store), default=0)
            if newest <= self.number or not self.number:
                return
            words = _words(store.read(_path(newest)))
        raise LakeTaken(
            f"writing the lake {self.lake}",
            f"a newer sink writes it: {words}",
            data="Nothing was written since; what this sink had written is whole, and the newer one goes on from there",
            remedy="Let one sink run for a lake: stop whatever starts the other one again",
        )

    def check_now_and_then(self) -> None:
        """`check`, where the last one is a while ago."""
        if self.number and time.monotonic() - self._looked_at >= LOOK_SECONDS:
            with suppress(LakeRecordsUnwritable):  # the next batch says so
                self.check()

    @contextmanager
    def _using(self) -> Iterator[None]:
        try:
            yield
        except OSError as failure:
            raise LakeRecordsUnwritable(
                f"looking which sink writes the lake {self.lake}",
                type(failure).__name__,
                data="Nothing was written since",
                remedy="Check the lake's storage, then start the sink again",
            ) from failure


def _path(number: int) -> str:
    return f"{WRITERS_FOLDER}/{number:020d}.json"


def _numbers(store: Store) -> list[int]:
    names = [found.path.rpartition("/")[2].removesuffix(".json") for found in store.list(WRITERS_FOLDER)]
    return [int(name) for name in names if name.isdecimal()]


def _words(document: bytes | None) -> str:
    try:
        facts = json.loads(document or b"")
        return f"process {int(facts['pid'])} on {str(facts['host'])[:255]!r}, since {instant_text(int(facts['at_us']))}"
    except (KeyError, TypeError, ValueError):
        return "it does not say which"
