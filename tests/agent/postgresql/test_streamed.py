"""Transactions in progress: what comes in blocks is handed on whole, in the order of commits, or not at all."""

import struct
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import psycopg
import pytest

from agent.sources.postgresql.native.blocks import BlockError
from agent.sources.postgresql.stream import streamed as streamed_module
from agent.sources.postgresql.stream.streamed import StreamedTransactions, TooMuchStreamed
from tests.postgres import SourceServer

NOTHING = b"d" + struct.pack("!i", 22) + b"k" + bytes(17)
KEEPALIVE = b"d" + struct.pack("!i", 22) + b"k" + struct.pack("!QQB", 77, 0, 1)


def frame(message: bytes) -> bytes:
    return b"d" + struct.pack("!I", 29 + len(message)) + b"w" + struct.pack("!QQQ", 1, 2, 3) + message


def start(xid: int, is_first: bool = True) -> bytes:
    return frame(b"S" + struct.pack("!IB", xid, is_first))


STOP = frame(b"E")


def abort(xid: int, subtransaction: int = 0) -> bytes:
    return frame(b"A" + struct.pack("!II", xid, subtransaction or xid))


def commit(xid: int, lsn: int = 100) -> bytes:
    return frame(b"c" + struct.pack("!IBQQq", xid, 0, lsn, lsn + 8, 5))


def begun(xid: int, lsn: int = 100) -> bytes:
    return frame(b"B" + struct.pack("!QqI", lsn, 5, xid))


def ended(lsn: int = 100) -> bytes:
    return frame(b"C" + struct.pack("!BQQq", 0, lsn, lsn + 8, 5))


def change(letter: bytes, body: bytes, xid: int | None = None) -> bytes:
    """Of a block where a (sub)transaction is given, else of a stream without blocks."""
    return frame(letter + (b"" if xid is None else struct.pack("!I", xid)) + body)


def relation(oid: int, version: bytes, xid: int | None = None) -> bytes:
    return change(b"R", struct.pack("!I", oid) + version, xid)


def row(body: bytes, xid: int | None = None) -> bytes:
    return change(b"I", struct.pack("!I", 7) + body, xid)


class Received:
    """A connection whose bytes come in pieces."""

    def __init__(self, data: bytes, sizes: Iterable[int]) -> None:
        self._data, self._sizes = data, iter(sizes)

    def receive_into(self, buffer: memoryview, timeout_seconds: float) -> int:
        part = self._data[: min(next(self._sizes), len(buffer))]
        buffer[: len(part)] = part
        self._data = self._data[len(part) :]
        return len(part)

    def acknowledge(self, written_lsn: int, flushed_lsn: int) -> None: ...

    def interrupt(self) -> None: ...


def pieces(seed: int) -> Iterator[int]:
    """Of all sizes; the first seed gives all at once."""
    chance = Random(seed)
    while True:
        yield chance.choice((1, 3, 29, 64, 1000)) if seed else 1 << 30


def read(data: bytes, folder: Path, *, most: int = 1 << 30, seed: int = 0) -> bytes:
    """All that is handed on, without keepalives that say nothing."""
    found = bytearray()
    buffer = memoryview(bytearray(4096))
    with closing(StreamedTransactions(Received(data, pieces(seed)), folder, most)) as stream:
        while size := stream.receive_into(buffer, 1.0):
            if buffer[:size] != NOTHING:
                found += buffer[:size]
            assert not list(folder.iterdir())
    return bytes(found)


def test_blocks_when_transactions_run_beside_each_other_then_each_is_handed_on_at_its_commit(tmp_path: Path) -> None:
    """Without what was rolled back, and the same in whatever pieces the bytes come."""
    large = bytes(range(256)) * 3000
    data = [
        start(1), relation(7, b"v1", 1), row(b"a", 1), row(b"gone", 11), change(b"O", b"12345678name\0"), STOP,
        begun(5, 40), row(b"plain"), ended(40),
        start(2), change(b"T", b"\0\0\0\1\0" + b"1234", 2), KEEPALIVE, row(large, 2), STOP, KEEPALIVE,
        start(3), row(b"of three", 3), STOP,
        abort(1, 11),
        start(1, False), row(b"b", 12), row(large, 11), change(b"M", b"message", 1), STOP,
        abort(3),
        commit(2, 50),
        begun(6, 60), row(b"plain too"), ended(60),
        commit(1, 70),
    ]  # fmt: skip
    whole = [
        begun(5, 40), row(b"plain"), ended(40),
        NOTHING[:-1] + b"\1", KEEPALIVE,
        begun(2, 50), change(b"T", b"\0\0\0\1\0" + b"1234"), row(large), ended(50),
        begun(6, 60), row(b"plain too"), ended(60),
        begun(1, 70), relation(7, b"v1"), row(b"a"), row(b"b"), change(b"M", b"message"), ended(70),
    ]  # fmt: skip
    for seed in range(4):
        assert read(b"".join(data), tmp_path, seed=seed) == b"".join(whole)


def test_relation_when_a_later_one_came_before_the_commit_then_that_is_told_again_behind_it(tmp_path: Path) -> None:
    data = [
        start(1), relation(7, b"v1", 1), row(b"a", 1), STOP,
        begun(5, 40), relation(7, b"v2"), relation(8, b"other"), row(b"b"), ended(40),
        start(2), relation(7, b"v3", 2), row(b"c", 2), relation(7, b"gone", 22), STOP, abort(2, 22),
        commit(1, 50),
        begun(6, 60), row(b"d"), ended(60),
        commit(2, 70),
        begun(8, 80), row(b"e"), ended(80),
    ]  # fmt: skip
    whole = [
        begun(5, 40), relation(7, b"v2"), relation(8, b"other"), row(b"b"), ended(40),
        begun(1, 50), relation(7, b"v1"), row(b"a"), ended(50),
        begun(6, 60), relation(7, b"v2"), row(b"d"), ended(60),
        begun(2, 70), relation(7, b"v3"), row(b"c"), ended(70),
        begun(8, 80), row(b"e"), ended(80),
    ]  # fmt: skip
    assert read(b"".join(data), tmp_path) == b"".join(whole)


def test_blocks_when_they_are_more_than_may_be_kept_then_the_stream_ends_and_no_file_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed_module, "MOST_TRANSACTIONS", 3)
    monkeypatch.setattr(streamed_module, "MOST_ABORTED", 3)
    blocks = [start(number) + row(bytes(100), number) + STOP for number in range(1, 5)]
    aborts = start(1) + row(b"", 1) + STOP + b"".join(abort(1, number) for number in range(10, 14))
    for data, most in ((b"".join(blocks[:2]), 200), (b"".join(blocks), 1 << 20), (aborts, 1 << 20)):
        with pytest.raises(TooMuchStreamed):
            read(data, tmp_path, most=most)
    again = blocks[0] + commit(1) + blocks[0] + abort(1)
    assert read(again * 20, tmp_path, most=200).count(bytes(100)) == 20


@pytest.mark.parametrize(
    "data",
    [
        STOP,
        commit(1),
        start(1, False),
        start(1) + STOP + start(1),
        start(1) + begun(2),
        start(1) + start(2),
        start(1) + frame(b"X"),
        start(1) + frame(b"R\0\0"),
        frame(b"S\0\0\0\1"),
        frame(b"A\0\0\0\1"),
        start(1) + frame(b"I\0\0") + STOP + commit(1),
        b"d\0\0\0\1",
        b"d\xff\xff\xff\xff",
    ],
)
def test_bytes_when_no_server_sends_them_then_they_are_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(BlockError):
        read(data, tmp_path)


def test_stream_when_a_server_sends_in_progress_then_it_is_what_the_server_sends_at_commits(
    postgres: SourceServer, tmp_path: Path
) -> None:
    """The same slot, read by both versions of the protocol: each row comes under the same relation."""
    url = f"postgresql://postgres@127.0.0.1:{postgres.port}/shop"
    postgres.run(
        "CREATE TABLE t (id int, note text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE TABLE u (id int)",
        "CREATE PUBLICATION p FOR ALL TABLES",
        "SELECT pg_create_logical_replication_slot('menura_both', 'pgoutput')",
        database="shop",
    )
    fill = "INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, 3000) AS n"
    with psycopg.connect(url) as one, psycopg.connect(url) as two, psycopg.connect(url, autocommit=True) as small:
        one.execute(fill)
        one.execute("SAVEPOINT a")
        one.execute("ALTER TABLE u ADD COLUMN of_a int")
        one.execute("INSERT INTO u SELECT n, n FROM generate_series(1, 5000) AS n")
        small.execute("INSERT INTO t VALUES (-1, 'small')")
        two.execute(fill)
        one.execute("ROLLBACK TO a")
        small.execute("ALTER TABLE u ADD COLUMN later text")
        small.execute("INSERT INTO u VALUES (1, 'later')")
        one.execute("INSERT INTO u SELECT n, 'x' FROM generate_series(1, 5000) AS n")
        one.execute("SAVEPOINT b")
        one.execute("UPDATE t SET note = 'y' WHERE id > 0")
        one.execute("RELEASE b")
        small.execute("SELECT pg_logical_emit_message(false, 'of', 'nobody')")
        two.execute("DELETE FROM t WHERE id > 0")
        two.execute(fill)
        one.commit()
        small.execute("INSERT INTO u VALUES (2, 'between')")
        two.rollback()
        two.execute(fill)
        two.commit()
    with psycopg.connect(url, autocommit=True) as reading:
        reading.execute("SET logical_decoding_work_mem = '64kB'")
        whole = peeked(reading, "'proto_version', '1'")
        blocks = peeked(reading, "'proto_version', '2', 'streaming', 'on'")
    assert sum(message[:1] == b"S" for message in blocks) > 3
    handed_on = read(b"".join(map(frame, blocks)), tmp_path, seed=1)
    assert under_relations(messages(handed_on)) == under_relations(whole)


def peeked(reading: psycopg.Connection, options: str) -> list[bytes]:
    statement = f"""
        SELECT data FROM pg_logical_slot_peek_binary_changes('menura_both', NULL, NULL, {options},
            'publication_names', 'p', 'messages', 'true')
    """
    return [bytes(data) for (data,) in reading.execute(statement).fetchall()]  # type: ignore[arg-type]


def messages(frames: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(frames):
        size = 1 + struct.unpack_from("!I", frames, at + 1)[0]
        found.append(frames[at + 30 : at + size])
        at += size
    return found


def under_relations(messages: list[bytes]) -> list[tuple[bytes, bytes]]:
    """All others, each with the relation that holds for it."""
    relations: dict[bytes, bytes] = {}
    found = []
    for message in messages:
        if message[:1] == b"R":
            relations[message[1:5]] = message
        elif message[:1] != b"Y":
            found.append((message, relations.get(message[1:5], b"") if message[:1] in b"IUD" else b""))
    return found
