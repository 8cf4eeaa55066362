"""The sanitised process: mutates, feeds, keeps what reached new code. Started by `tests.fuzz.__main__`.

    python -m tests.fuzz.worker run SEED EVENTS CORPUS CURRENT [--blind]
    python -m tests.fuzz.worker replay FILE...

The input that is being fed lies in the file CURRENT all the time, so that it outlives a crash; what reached new code is
appended to CORPUS. The last line that is printed is a JSON object of counts.
"""

import ctypes
import faulthandler
import json
import logging
import mmap
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import agent.columnar
import agent.sources.mysql.native
import agent.sources.postgresql.native
from tests.fuzz.build import FOLDER

# before anything imports the core
for package in (agent.columnar, agent.sources.mysql.native, agent.sources.postgresql.native):
    package.__path__.insert(0, str(FOLDER / package.__name__))

from agent.sources.mysql.native.decoder import BinlogDecoder  # noqa: E402
from agent.sources.mysql.native.results import ResultReader  # noqa: E402
from agent.sources.postgresql.native.decoder import PgoutputDecoder  # noqa: E402
from agent.sources.postgresql.native.results import RowsDecoder  # noqa: E402
from tests.agent.native.mutation import packets, payloads  # noqa: E402
from tests.fuzz import seeds  # noqa: E402
from tests.fuzz.mutate import Payloads, mutate, stream_of  # noqa: E402
from tests.fuzz.postgresql import PREFIXES, PostgresqlTarget  # noqa: E402
from tests.fuzz.reader import ReaderTarget  # noqa: E402
from tests.fuzz.results import RESULT_PREFIX, ResultSets, ResultTarget  # noqa: E402
from tests.fuzz.target import Target, check, from_file, to_file  # noqa: E402

#: of the processor; 64 inputs that take more hang
HANG_SECONDS = 20
#: of the slower properties: one input in so many
CHECK_EACH = 20
#: of result sets: one input in so many
RESULT_EACH = 8
#: of PostgreSQL's stream, and of its answers: one input in so many
POSTGRESQL_EACH = 3
POSTGRESQL_BLOCKS_EACH = 4
POSTGRESQL_ANSWER_EACH = 12
#: corpus entries that are larger would only be slow
MOST_KEPT_BYTES = 16384
#: behind what was received; a read further away than this does not happen by a step too many
GUARD_BYTES = 4096

_asan = ctypes.CDLL(None)
_coverage = ctypes.CDLL(str(FOLDER / "coverage.so"))


def guard(decoder: BinlogDecoder | ResultReader | PgoutputDecoder | RowsDecoder) -> Callable[[], None]:
    """AddressSanitizer's red zone right behind the last byte received, in the middle of the receive buffer."""
    free = ctypes.c_char.from_buffer(decoder.writable())
    address, size = ctypes.c_void_p(ctypes.addressof(free)), ctypes.c_size_t(GUARD_BYTES)
    _asan.__asan_poison_memory_region(address, size)

    def unguard() -> None:
        _asan.__asan_unpoison_memory_region(address, size)

    return unguard


class Corpus:
    """Transactions to mutate: the seeds, and what has reached new code since."""

    def __init__(self, path: Path) -> None:
        self.entries: list[seeds.Seed] = seeds.load()
        self.seed_count = len(self.entries)
        self._file = path.open("a+b")
        self._file.seek(0)
        while head := self._file.read(5):
            size = int.from_bytes(head[1:], "little")
            unit = list(payloads(self._file.read(size)))
            self.entries.append((bool(head[0]), unit))

    def keep(self, mariadb: bool, unit: Payloads) -> None:
        if any(len(payload) <= 20 for payload in unit) or sum(map(len, unit)) > MOST_KEPT_BYTES:
            return
        stream = b"".join(map(packets, unit))
        self.entries.append((mariadb, unit))
        self._file.write(bytes([mariadb]) + len(stream).to_bytes(4, "little") + stream)
        self._file.flush()


class Current:
    """The input that is being fed, in a file."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(1 << 20))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def put(self, data: bytes) -> None:
        self._map[: 4 + len(data)] = len(data).to_bytes(4, "little") + data


def run(seed: int, events: int, corpus_path: Path, current_path: Path, *, blind: bool) -> dict[str, float]:
    """Feed so many mutated events."""
    chance, target, corpus, current = Random(seed), Target(guard), Corpus(corpus_path), Current(current_path)
    donors = {flavor: [unit for mariadb, unit in corpus.entries if mariadb is flavor] for flavor in (False, True)}
    results, result_sets = ResultTarget(guard), ResultSets(chance)
    folder = current_path.with_name("reader")
    folder.mkdir(exist_ok=True)
    reader = ReaderTarget(folder)
    postgresql = PostgresqlTarget(chance, guard)
    fed = inputs = errors = rows = 0
    for mariadb, unit in corpus.entries:  # what is known is not new
        target.run(b"".join(map(packets, unit)), mariadb=mariadb)
        _coverage.fuzz_end()
    began = time.monotonic()
    while fed < events:
        mariadb, unit = corpus.entries[_chosen(len(corpus.entries), corpus.seed_count, chance)]
        changed, count = mutate(unit, chance, donors[mariadb])
        stream = stream_of(changed, chance)
        current.put(to_file(stream, mariadb=mariadb))
        if inputs % 64 == 0:
            signal.setitimer(signal.ITIMER_PROF, HANG_SECONDS)
        outcome = target.run(stream, mariadb=mariadb)
        if _coverage.fuzz_end() and not blind:
            corpus.keep(mariadb, changed)
        if inputs % CHECK_EACH == 0:
            check(target, stream, outcome, mariadb=mariadb)
            reader.run(stream, mariadb=mariadb)
            _coverage.fuzz_begin()
        if inputs % RESULT_EACH == 0:
            stream, packet_count = result_sets.stream()
            current.put(results.to_file(stream))
            errors += results.run(stream, slowly=inputs % CHECK_EACH == 0)
            _coverage.fuzz_begin()
            fed += packet_count
        if inputs % POSTGRESQL_EACH == 0:
            data, message_count = postgresql.changes()
            current.put(data)
            errors += bool(postgresql.run(data, slowly=inputs % CHECK_EACH == 0))
            if _coverage.fuzz_end() and not blind:
                postgresql.keep()
            fed += message_count
        if inputs % POSTGRESQL_BLOCKS_EACH == 0:
            data, message_count = postgresql.blocks()
            current.put(data)
            errors += bool(postgresql.run(data, slowly=inputs % CHECK_EACH == 0))
            _coverage.fuzz_begin()
            fed += message_count
        if inputs % POSTGRESQL_ANSWER_EACH == 0:
            data, message_count = postgresql.answer()
            current.put(data)
            errors += bool(postgresql.run(data, slowly=inputs % CHECK_EACH == 0))
            _coverage.fuzz_begin()
            fed += message_count
        inputs += 1
        fed += count
        errors += bool(outcome.error)
        rows += outcome.rows
    seconds = time.monotonic() - began
    return {
        **{"events": fed, "inputs": inputs, "errors": errors, "rows": rows, "seconds": round(seconds, 1)},
        **{"edges": _coverage.fuzz_edges(), "corpus": len(corpus.entries)},
    }


def _chosen(count: int, seed_count: int, chance: Random) -> int:
    """The newest finds half of the time."""
    if count > seed_count and chance.random() < 0.3:
        return count - 1 - int((count - seed_count) * chance.random() ** 3)
    return chance.randrange(count)


def main() -> None:
    faulthandler.enable()
    logging.disable()
    arguments = sys.argv[1:]
    if arguments[0] == "replay":
        for path in map(Path, arguments[1:]):
            if path.read_bytes().startswith(PREFIXES):
                error = PostgresqlTarget(Random(0), guard).run(path.read_bytes(), slowly=True)
                print(f"{path.name}: {error or 'no error'}")
                continue
            if path.read_bytes().startswith(RESULT_PREFIX):
                print(f"{path.name}: {ResultTarget(guard).replay(path.read_bytes()) or 'no error'}")
                continue
            stream, mariadb = from_file(path)
            target = Target(guard)
            outcome = target.run(stream, mariadb=mariadb)
            check(target, stream, outcome, mariadb=mariadb)
            with tempfile.TemporaryDirectory() as folder:
                ReaderTarget(Path(folder)).run(stream, mariadb=mariadb)
            print(f"{path.name}: {outcome.rows} rows, {outcome.error or 'no error'}")
    else:
        seed, events = int(arguments[1]), int(arguments[2])
        blind = "--blind" in arguments
        print(json.dumps(run(seed, events, Path(arguments[3]), Path(arguments[4]), blind=blind)))


if __name__ == "__main__":
    main()
