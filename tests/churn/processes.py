"""What the platform's processes used and said in a run: resident memory by the minute, warnings, errors."""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.stack import Process

SAMPLE_SECONDS = 1.0
MINUTE = 60.0
#: of a line that is shown
LINE_CHARACTERS = 400
_TOLD = re.compile(r"^\S+Z (?P<level>warning|error|critical) (?P<words>.*)$", re.IGNORECASE)
_SHARE = re.compile(r"^Pss:\s+(\d+) kB$", re.MULTILINE)
_NUMBERS = re.compile(r"\d+")


@dataclass
class Memory:
    """Of each process with its children, such as Spark's, the most of each minute."""

    #: each leads a session, as the stack's do
    processes: dict[str, Process]
    #: by process, in bytes, a minute each
    peaks: dict[str, list[int]] = field(default_factory=dict)

    def run(self, ended: Callable[[], bool], pause: Callable[[float], object]) -> None:
        began = time.monotonic()
        while not ended():
            minute = int((time.monotonic() - began) // MINUTE)
            leaders = {name: each.running.pid for name, each in self.processes.items() if each.running is not None}
            used = resident_bytes_by_session(leaders.values())
            for name, leader in leaders.items():
                peaks = self.peaks.setdefault(name, [])
                peaks += [0] * (minute + 1 - len(peaks))
                peaks[minute] = max(peaks[minute], used.get(leader, 0))
            pause(SAMPLE_SECONDS)

    def __str__(self) -> str:
        by_process = [
            f"{name} {', '.join(str(peak >> 20) for peak in peaks)}" for name, peaks in sorted(self.peaks.items())
        ]
        return f"MiB resident, a minute each: {'; '.join(by_process)}"


@contextmanager
def memory_of(processes: dict[str, Process]) -> Iterator[Memory]:
    """While the context lasts."""
    memory, ended = Memory(processes), threading.Event()
    thread = threading.Thread(target=memory.run, args=(ended.is_set, ended.wait), name="memory")
    thread.start()
    try:
        yield memory
    finally:
        ended.set()
        thread.join()


def resident_bytes_by_session(leaders: Collection[int]) -> dict[int, int]:
    """What forks of one process share is divided between them."""
    used: Counter[int] = Counter()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            session = int((folder / "stat").read_text().rpartition(")")[2].split()[3])
            if session in leaders:
                used[session] += 1024 * sum(map(int, _SHARE.findall((folder / "smaps_rollup").read_text())))
    return used


def told(logs: dict[str, Path]) -> list[str]:
    """Warnings and errors, lines that differ in numbers alone counted as one, the most frequent first."""
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for name, log in logs.items():
        for line in log.read_text(errors="replace").splitlines():
            found = _TOLD.match(line)
            words = f"{found['level'].lower()} {found['words']}" if found else line
            if found or line.startswith("Traceback"):
                key = f"{name} {_NUMBERS.sub('0', words)}"
                counts[key] += 1
                examples.setdefault(key, f"{name}: {words[:LINE_CHARACTERS]}")
    return [f"{count:5} x {examples[key]}" for key, count in counts.most_common()]
