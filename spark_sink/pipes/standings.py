"""How pipes stand, for who asks beside them: of each a file that its run writes, and lines for a person.

Comes in: standings. Goes out: FOLDER/status.json, as::

    {"format": 1, "producer": "kafka", "state": "retries", "at_us": 1764480000000000, "cuts": {"acme/shop": 41},
     "failures": 3, "failure": "EXPORT_OUTPUT_FAILED: ...", "without": ["acme/crm: crm.notes has stopped ..."]}

written anew with each change of state and each step, whole or not at all. It is no position: it is read for people
alone. Whether a run is there is said by the lock of FOLDER/status.lock, so a kill leaves a pipe that does not run.
"""

import fcntl
import json
import logging
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from menura.errors import printable
from menura.instants import now_us

from spark_sink.export.following import Standing
from spark_sink.export.outputs import replace_document

STATUS_FILE, LOCK_FILE = "status.json", "status.lock"
MAX_BYTES = 1 << 20
MOST_TABLES = 100
MOST_CHARS = 1_000
_HEAD = ("PIPE", "PRODUCER", "STATE", "UP TO CUT", "AT", "FAILURES")

logger = logging.getLogger("menura.export")


class StatusFile:
    def __init__(self, folder: Path, producer: str) -> None:
        """Of the run that has the folder. Raises OSError."""
        self.folder = folder
        self.producer = producer
        self._is_away = False
        self._lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # nobody but who asks how it stands has it, for a moment

    def close(self) -> None:
        """The run ends."""
        os.close(self._lock)

    def tell(self, standing: Standing) -> None:
        """What can't be written is said once: no pipe ends for it."""
        without = [f"{table}: {why}"[:MOST_CHARS] for table, why in sorted(standing.without.items())]
        document = {
            "format": 1,
            "producer": self.producer,
            "state": standing.state.value,
            "at_us": now_us(),
            "cuts": {"/".join(source): cut for source, cut in sorted(standing.cuts.items())},
            "failures": standing.failures,
            "failure": standing.failure[:MOST_CHARS],
            "without": without[:MOST_TABLES],
        }
        try:
            replace_document(self.folder / STATUS_FILE, document)
            self._is_away = False
        except OSError as failure:
            if not self._is_away:
                logger.warning("%s can't be written: %s", self.folder / STATUS_FILE, failure.strerror)
            self._is_away = True


def is_running(folder: Path) -> bool:
    try:
        lock = os.open(folder / LOCK_FILE, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def lines(pipes: Sequence[tuple[str, str]], positions: Path) -> list[str]:
    """`pipes`: names and producers."""
    rows, more = [_HEAD], []
    for name, producer in pipes:
        found = _read(positions / name)
        state = str(found.get("state", "never ran"))
        if not is_running(positions / name) and state not in ("never ran", "stopped"):
            state = f"not running ({state})"
        at = (
            datetime.fromtimestamp(found["at_us"] / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
            if found.get("at_us")
            else ""
        )
        cuts = ", ".join(f"{source}:{cut}" for source, cut in found.get("cuts", {}).items())
        rows.append((name, producer, state, cuts, at, str(found.get("failures", 0))))
        said = [found["failure"]] if found.get("failure") else []
        more += [f"{name}: {words}" for words in [*said, *found.get("without", [])]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [printable(line) for line in (*table, *more)]


def _read(folder: Path) -> Mapping[str, Any]:
    """Empty where there is none that can be read."""
    try:
        with (folder / STATUS_FILE).open("rb") as file:
            found = json.loads(file.read(MAX_BYTES))
        checked = (found["format"] == 1, isinstance(found["cuts"], dict), isinstance(found["without"], list),
                   type(found["at_us"]) is int)  # fmt: skip
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as wrong:
        return _damaged(type(wrong).__name__)
    return found if all(checked) else _damaged("its form is another one")


def _damaged(why: str) -> Mapping[str, Any]:
    return {"state": "unknown", "at_us": 0, "failure": f"{STATUS_FILE} can't be read: {why}"}
