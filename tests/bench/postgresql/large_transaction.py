"""`python -m tests.bench.postgresql.large_transaction`: what it would bring to read large transactions in progress.

A transaction of 2,000,000 rows ends while a slot is read: by the protocol's version 1, by version 2 with `streaming`,
or by version 1 where the server may keep the transaction in its memory. Prints for each release and way: seconds from
COMMIT or ROLLBACK until all of it has come, bytes that came, seconds of CPU of the server's process that sends, bytes
that it wrote to its disk (spilled), and that it sent before the end (streamed). The reader drops what comes: a real one
is slower. After a ROLLBACK a row of another transaction is waited for.
"""

import itertools
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from agent.sources.postgresql.server.quoting import literal, quoted
from agent.sources.postgresql.server.wire import WalStream, Wire
from tests.agent.postgresql.sources import SOURCE, login
from tests.postgres import SourceServer, source_server

ROWS, STATEMENTS = 2_000_000, 20
SLOT, PUBLICATION = "menura_bench", "menura"
RELEASES = ("", "18")
#: options of the stream, and the server's logical_decoding_work_mem; 64MB is its default
WAYS = {
    "whole": ("proto_version '1'", "64MB"),
    "in progress": ("proto_version '2', streaming 'on'", "64MB"),
    "whole in memory": ("proto_version '1'", "1GB"),
}
_TICKS = os.sysconf("SC_CLK_TCK")
#: CopyData, its length, `w` with three numbers; behind them Commit or Stream Commit ends what was waited for
_HEAD_BYTES = 30
_ENDS = {ord("C"): _HEAD_BYTES + 26, ord("c"): _HEAD_BYTES + 30}
_KEEPALIVE_BYTES = 23
_MOST_SECONDS = 600.0
_STATISTICS = """
    SELECT spill_bytes / 1000000, spill_count, stream_bytes / 1000000, stream_count, total_bytes
    FROM pg_stat_replication_slots
"""


class Reader:
    """Reads a slot on a thread of its own, and drops what comes."""

    def __init__(self, server: SourceServer, options: str) -> None:
        wire = Wire.open(login(server), SOURCE, replication=True)
        named = f"{options}, publication_names {literal(quoted(PUBLICATION))}"
        wire.exchange(f"START_REPLICATION SLOT {SLOT} LOGICAL 0/0 ({named})", b"W")
        self._stream = WalStream(wire, SOURCE, 0)
        self.received_bytes = 0
        self.ended_at = 0.0
        self.ends = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def cpu_seconds(self) -> float:
        words = Path(f"/proc/{self._stream.backend_pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / _TICKS

    def _run(self) -> None:
        buffer = bytearray(1 << 20)
        tail = b""
        while True:
            try:
                size = self._stream.receive_into(memoryview(buffer), _MOST_SECONDS)
            except OSError:  # closed
                return
            if not size:
                return
            self.received_bytes += size
            tail = _without_keepalives((tail + bytes(buffer[max(0, size - 512) : size]))[-512:])
            if any(len(tail) >= whole and _ends(tail[-whole:], kind, whole) for kind, whole in _ENDS.items()):
                tail = b""
                self.ended_at = time.monotonic()
                self.ends += 1

    def close(self) -> None:
        self._stream.close()
        self._thread.join()


def _without_keepalives(tail: bytes) -> bytes:
    while len(tail) >= _KEEPALIVE_BYTES and tail[-_KEEPALIVE_BYTES:][:6] == b"d\0\0\0\x16k":
        tail = tail[:-_KEEPALIVE_BYTES]
    return tail


def _ends(message: bytes, kind: int, whole: int) -> bool:
    return message[0] == ord("d") and message[_HEAD_BYTES] == kind and int.from_bytes(message[1:5]) == whole - 1


def measure(server: SourceServer, options: str, *, commits: bool) -> str:
    with server.connect("shop") as connection:
        connection.execute("CREATE TABLE items (id bigint PRIMARY KEY, name text, amount int)")
        connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE items")
        connection.execute(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
        connection.execute("SELECT pg_stat_reset_replication_slot(NULL)")
    with closing(Reader(server, options)) as reader, server.connect("shop", autocommit=False) as writer:
        began = time.monotonic()
        for number in range(STATEMENTS):
            least, most = number * (ROWS // STATEMENTS), (number + 1) * (ROWS // STATEMENTS) - 1
            rows = f"SELECT n, md5(n::text) || n, n FROM generate_series({least}, {most}) AS n"
            writer.execute(f"INSERT INTO items {rows}")
        wrote_seconds = time.monotonic() - began
        before, ends = reader.received_bytes, reader.ends
        ended = time.monotonic()
        if commits:
            writer.commit()
        else:
            writer.rollback()
            writer.execute("INSERT INTO items VALUES (-1, 'after', 0)")
            writer.commit()
        deadline = ended + _MOST_SECONDS
        while reader.ends == ends:
            assert time.monotonic() < deadline, "the transaction does not end"
            time.sleep(0.005)
        time.sleep(0.1)  # whatever follows is no end of it
        facts = [
            f"wrote {wrote_seconds:.1f} s",
            f"then {reader.ended_at - ended:.2f} s",
            f"came {reader.received_bytes / 1e6:.0f} MB, before the end {before / 1e6:.0f} MB",
            f"cpu {reader.cpu_seconds:.2f} s",
        ]
    return ", ".join([*facts, _spilled(server)])


def _spilled(server: SourceServer) -> str:
    """Its counts are told when the slot is released."""
    deadline = time.monotonic() + 30
    while True:
        spilled, spills, streamed, streams, total = server.run(_STATISTICS)[0]
        if total or time.monotonic() > deadline:
            return f"spilled {spilled} MB in {spills}, streamed {streamed} MB in {streams}"
        time.sleep(0.1)


def main(runs: int, ways: Sequence[str]) -> None:
    for number, release, way, commits in itertools.product(range(runs), RELEASES, ways, (True, False)):
        options, memory = WAYS[way]
        with source_server(release, logical_decoding_work_mem=memory) as server:
            server.create_replication_user()
            found = measure(server, options, commits=commits)
            case = f"{server.version // 10000} {way}, {'commit' if commits else 'rollback'}, run {number}"
            sys.stdout.write(f"{case}: {found}; load {os.getloadavg()[0]:.0f}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1, sys.argv[2:] or tuple(WAYS))
