"""Slots, and the stream of changes of one: its bytes, its acknowledgement, its errors and its ends."""

import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pg8000.exceptions import DatabaseError

from agent.errors import SourceConnectionLost, SourceFailed, SourceGrantMissing, SourceVersionUnsupported
from agent.sources.postgresql.config import ServerConfig, TlsMode
from agent.sources.postgresql.errors import (
    PublicationGone,
    SlotForeign,
    SlotInUse,
    SlotInvalidated,
    SlotMissing,
    SlotsExhausted,
    WalLevelNotLogical,
)
from agent.sources.postgresql.server import slot as slots
from agent.sources.postgresql.server import wire as wires
from agent.sources.postgresql.server.connection import connect
from agent.sources.postgresql.server.slot import Slot, create_slot, drop_slot, find_slot
from agent.sources.postgresql.server.wire import WalStream, Wire, open_wal_stream, slot_error, stream_error
from tests.agent.postgresql.sources import SOURCE, login
from tests.postgres import NEWEST, SourceServer, source_server, standby_of
from tests.silent_network import SilentNetwork
from tests.stack import wait_for

SLOT = "menura_test"
PUBLICATION = "odd \"publication'"
QUOTED = '"odd ""publication\'"'


def wait_until_free(server: ServerConfig) -> None:
    """The process of a stream that was closed has the slot a moment longer."""
    wait_for("the slot to be free", lambda: (found := slot_of(server)) and found.active_pid is None)


def publish(running: SourceServer) -> None:
    running.run(
        "CREATE TABLE t (id int PRIMARY KEY, x text)", f"CREATE PUBLICATION {QUOTED} FOR TABLE t", database="shop"
    )


def slot_of(server: ServerConfig, name: str = SLOT) -> Slot | None:
    with closing(connect(server, SOURCE)) as connection:
        return find_slot(connection, name)


def confirmed(server: ServerConfig) -> int:
    found = slot_of(server)
    assert found is not None
    assert found.confirmed_flush_lsn is not None
    return found.confirmed_flush_lsn


@contextmanager
def streaming(server: ServerConfig, lsn: int) -> Iterator[WalStream]:
    with closing(open_wal_stream(server, SOURCE, SLOT, PUBLICATION, lsn)) as stream:
        yield stream


class Reader:
    """Takes messages of a stream apart."""

    def __init__(self, stream: WalStream) -> None:
        self._stream = stream
        self._buffer = memoryview(bytearray(1 << 16))
        self._bytes = b""

    def message(self) -> tuple[str, bytes]:
        """The next one's kind and body; in CopyData the kind is that of what it holds."""
        deadline = time.monotonic() + 300
        while len(self._bytes) < 5 or len(self._bytes) < 1 + struct.unpack_from("!i", self._bytes, 1)[0]:
            assert time.monotonic() < deadline
            received = self._stream.receive_into(self._buffer, 300)
            assert received, "the server has ended the stream"
            self._bytes += self._buffer[:received]
        end = 1 + struct.unpack_from("!i", self._bytes, 1)[0]
        whole, self._bytes = self._bytes[:end], self._bytes[end:]
        return (chr(whole[5]), whole[6:]) if whole[:1] == b"d" else (chr(whole[0]), whole[5:])

    def rows(self, count: int) -> list[bytes]:
        """Bodies of so many rows' messages, and what follows them up to the commit."""
        found: list[bytes] = []
        while True:
            kind, body = self.message()
            if kind == "w":
                change = body[24:]
                if change[:1] in b"IUD":
                    found.append(change)
                if change[:1] == b"C" and len(found) >= count:
                    return found


def test_slot_when_made_then_is_found_and_dropped(postgres: SourceServer) -> None:
    server = login(postgres)
    assert slot_of(server) is None
    made = create_slot(server, SOURCE, SLOT)
    found = slot_of(server)
    assert found is not None
    assert (found.plugin, found.database, found.confirmed_flush_lsn) == ("pgoutput", "shop", made)
    assert (found.wal_status, found.active_pid, found.is_lost, found.safe_wal_bytes) == ("reserved", None, False, None)
    drop_slot(server, SOURCE, SLOT)
    drop_slot(server, SOURCE, SLOT)
    assert slot_of(server) is None


def test_slot_when_a_transaction_runs_then_making_it_fails_and_names_the_process(
    postgres: SourceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.run("CREATE TABLE t (id int)", "GRANT pg_read_all_stats TO menura", database="shop")
    server = login(postgres)
    with postgres.connect("shop", autocommit=False) as other, monkeypatch.context() as hurried:
        hurried.setattr(slots, "CREATION_SECONDS", 0.3)
        other.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(SourceFailed) as failed:
            create_slot(server, SOURCE, SLOT)
        assert f"server process {other.info.backend_pid}" in failed.value.found
    postgres.run("REVOKE pg_read_all_stats FROM menura")
    assert slot_of(server) is None
    assert create_slot(server, SOURCE, SLOT)


def test_slot_when_the_server_can_not_make_one_then_the_error_says_why() -> None:
    with source_server(wal_level="replica", max_replication_slots="1") as running:
        running.create_replication_user()
        running.run("CREATE ROLE reader LOGIN PASSWORD 'menura-secret'")
        with pytest.raises(WalLevelNotLogical, match="wal_level is replica"):
            create_slot(login(running), SOURCE, SLOT)
        with pytest.raises(SourceGrantMissing):
            create_slot(login(running, "reader"), SOURCE, SLOT)
        running.stop()
        running.settings["wal_level"] = "logical"
        running.start()
        create_slot(login(running), SOURCE, "first")
        with pytest.raises(SlotsExhausted):
            create_slot(login(running), SOURCE, SLOT)
        with standby_of(running) as standby:
            running.wait_for_replay(standby)
            if standby.version < 160000:
                with pytest.raises(SourceVersionUnsupported):
                    create_slot(login(standby), SOURCE, SLOT)


def test_slot_when_made_on_a_standby_then_its_changes_come() -> None:
    """A standby makes one as soon as its primary has told which transactions run."""
    with source_server(NEWEST) as primary:
        primary.create_replication_user()
        publish(primary)
        with standby_of(primary, slot="follows") as standby:
            primary.wait_for_replay(standby)
            server = login(standby)
            made: list[int] = []
            making = threading.Thread(target=lambda: made.append(create_slot(server, SOURCE, SLOT)))
            making.start()
            wait_for("the slot", lambda: primary.run("SELECT pg_log_standby_snapshot()") and not making.is_alive())
            with streaming(server, made[0]) as stream:
                primary.run("INSERT INTO t VALUES (1, 'one')", database="shop")
                assert Reader(stream).rows(1)


def test_stream_when_rows_change_then_their_bytes_come(postgres: SourceServer) -> None:
    publish(postgres)
    server = login(postgres)
    with streaming(server, create_slot(server, SOURCE, SLOT)) as stream:
        reader = Reader(stream)
        postgres.run("INSERT INTO t VALUES (1, 'one'), (2, 'two')", "DELETE FROM t WHERE id = 1", database="shop")
        inserted = reader.rows(2)
        assert [b"one" in inserted[0], b"two" in inserted[1], len(inserted)] == [True, True, 2]
        (deleted,) = reader.rows(1)
        assert deleted.startswith(b"D")


def test_stream_when_under_tls_and_rows_are_larger_than_a_record_then_all_bytes_come() -> None:
    """What TLS has decoded and not handed over is nothing that a poll sees."""
    with source_server(tls="hostssl") as running:
        running.create_replication_user()
        publish(running)
        server = login(running, tls=TlsMode.VERIFY_FULL)
        with streaming(server, create_slot(server, SOURCE, SLOT)) as stream:
            running.run("INSERT INTO t SELECT i, repeat('x', 100000) FROM generate_series(1, 20) i", database="shop")
            assert [len(row) > 100_000 for row in Reader(stream).rows(20)] == [True] * 20


def test_stream_when_acknowledged_then_the_slot_moves_and_what_was_acknowledged_does_not_come_again(
    postgres: SourceServer,
) -> None:
    publish(postgres)
    server = login(postgres)
    start = create_slot(server, SOURCE, SLOT)
    with streaming(server, start) as stream:
        postgres.run("INSERT INTO t VALUES (1, 'one')", database="shop")
        Reader(stream).rows(1)
        end = int(str(postgres.run("SELECT pg_current_wal_flush_lsn() - '0/0'")[0][0]))
        assert confirmed(server) == start
        stream.acknowledge(end, start)
        stream.acknowledge(end, end)
        wait_for("the slot to move", lambda: confirmed(server) == end)
    wait_until_free(server)
    postgres.run("INSERT INTO t VALUES (2, 'two')", database="shop")
    with streaming(server, end) as stream:
        (row,) = Reader(stream).rows(1)
        assert b"two" in row


def test_stream_when_nobody_reads_then_the_server_keeps_it_while_its_status_comes(
    postgres: SourceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while the gateway gives no credit. A server waits for a word of ours, and a status is one."""
    monkeypatch.setattr(wires, "STATUS_SECONDS", 0.1)
    publish(postgres)
    server = login(postgres)
    with streaming(server, create_slot(server, SOURCE, SLOT)) as stream:
        postgres.run("INSERT INTO t SELECT i, repeat('x', 10000) FROM generate_series(1, 5000) i", database="shop")

        def heard_at(waiting_since: datetime) -> datetime | None:
            """When its process took a status that was sent later, and waits for room."""
            found = postgres.run(
                "SELECT reply_time FROM pg_stat_replication JOIN pg_stat_activity USING (pid)"
                f" WHERE wait_event = 'WalSenderWriteData' AND reply_time > '{waiting_since.isoformat()}'"
            )
            return found[0][0] if found else None

        heard = datetime.min.replace(year=2000, tzinfo=UTC)
        for _ in range(3):
            heard = wait_for("a status to come while the server waits for room", lambda last=heard: heard_at(last))
        assert len(Reader(stream).rows(5000)) == 5000


def test_stream_when_nothing_changes_then_the_server_answers_its_status(
    postgres: SourceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wires, "STATUS_SECONDS", 0.1)
    publish(postgres)
    server = login(postgres)
    with streaming(server, create_slot(server, SOURCE, SLOT)) as stream:
        reader = Reader(stream)
        assert [reader.message()[0] for _ in range(10)] == ["k"] * 10


def test_stream_when_the_network_falls_silent_then_reading_ends_with_its_time(
    postgres: SourceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(postgres)
    network = SilentNetwork(postgres.host, postgres.port)
    server = login(postgres, port=network.port)
    with closing(network), streaming(server, create_slot(server, SOURCE, SLOT)) as stream:
        network.silence()
        buffer = memoryview(bytearray(1 << 16))
        with pytest.raises(TimeoutError):
            while stream.receive_into(buffer, 0.5):
                pass


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_stream_when_its_server_goes_then_it_ends(mode: str) -> None:
    with source_server() as running:
        running.create_replication_user()
        publish(running)
        server = login(running)
        with streaming(server, create_slot(server, SOURCE, SLOT)) as stream:
            # one that goes down in good order waits for an acknowledgement of all that it has sent
            going = threading.Thread(target=running.stop, args=(mode,))
            going.start()
            buffer = memoryview(bytearray(1 << 16))
            last = b""
            try:
                while received := stream.receive_into(buffer, 300):
                    last = bytes(buffer[:received])
                    if last[5:6] == b"k":
                        (end,) = struct.unpack_from("!q", last, 6)
                        stream.acknowledge(end, end)
            except (ConnectionResetError, BrokenPipeError):
                # what an end at once does to an acknowledgement that is on its way
                assert mode == "immediate"
            finally:
                going.join()
        running.start()
        assert slot_of(server) is not None


def test_stream_when_interrupted_then_the_reading_thread_goes_on_at_once(postgres: SourceServer) -> None:
    publish(postgres)
    server = login(postgres)
    with streaming(server, create_slot(server, SOURCE, SLOT)) as stream:
        ended = threading.Event()

        def read() -> None:
            buffer = memoryview(bytearray(1 << 16))
            with suppress(ConnectionResetError):  # the server's bytes came after our end
                while stream.receive_into(buffer, 300):
                    pass
            ended.set()

        reading = threading.Thread(target=read)
        reading.start()
        stream.interrupt()
        reading.join()
        assert ended.is_set()


@pytest.mark.parametrize("is_local", [False, True], ids=["TCP", "Unix"])
def test_stream_when_interrupted_while_bytes_gather_then_reading_ends_at_once(
    postgres: SourceServer, monkeypatch: pytest.MonkeyPatch, is_local: bool
) -> None:
    for name in ("GATHER_SECONDS", "GATHER_LOCAL_SECONDS"):
        monkeypatch.setattr(wires, name, 1e6)
    publish(postgres)
    server = replace(login(postgres), host=str(postgres.folder)) if is_local else login(postgres)
    with streaming(server, create_slot(server, SOURCE, SLOT)) as stream:
        buffer = memoryview(bytearray(1 << 16))
        assert stream.receive_into(buffer, 300)  # a keepalive, behind which more may come
        ended: list[int | str] = []

        def read() -> None:
            try:
                ended.append(stream.receive_into(buffer, 1e6))
            except ConnectionResetError as reset:  # the server's bytes came after our end
                ended.append(str(reset))

        reading = threading.Thread(target=read)
        reading.start()
        postgres.run("INSERT INTO t VALUES (1, 'few bytes')", database="shop")
        stream.interrupt()
        reading.join()
        assert len(ended) == 1


def test_stream_when_many_bytes_gather_then_they_are_received_at_once(
    postgres: SourceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wires, "GATHER_SECONDS", 1e6)
    publish(postgres)
    server = login(postgres)
    with streaming(server, create_slot(server, SOURCE, SLOT)) as stream:
        buffer = memoryview(bytearray(1 << 20))
        assert stream.receive_into(buffer, 300)
        postgres.run("INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, 10000) AS n", database="shop")
        received = stream.receive_into(buffer, 1e6)
        assert received > 100 * 250  # of messages that come one by one; the system may say so before GATHER_BYTES


def test_stream_when_closed_then_the_slot_is_free_for_the_next(postgres: SourceServer) -> None:
    publish(postgres)
    server = login(postgres)
    lsn = create_slot(server, SOURCE, SLOT)
    with streaming(server, lsn) as stream:
        with pytest.raises(SlotInUse) as used:
            open_wal_stream(server, SOURCE, SLOT, PUBLICATION, lsn)
        assert f"server process {stream.backend_pid}" in used.value.found
        assert not used.value.terminal
        stream.close()
    wait_until_free(server)
    with streaming(server, lsn) as stream:
        postgres.run("INSERT INTO t VALUES (1, 'one')", database="shop")
        assert Reader(stream).rows(1)


def test_stream_when_its_slot_is_missing_or_of_others_then_the_error_says_so(postgres: SourceServer) -> None:
    publish(postgres)
    server = login(postgres)
    with pytest.raises(SlotMissing):
        open_wal_stream(server, SOURCE, SLOT, PUBLICATION, 0x1000000)
    postgres.create_database("other")
    postgres.run("SELECT pg_create_logical_replication_slot('menura_test', 'pgoutput')", database="other")
    with pytest.raises(SlotForeign):
        open_wal_stream(server, SOURCE, SLOT, PUBLICATION, 0x1000000)
    found = slot_of(server)
    assert found is not None
    assert isinstance(slot_error(found, server, SOURCE, 0), SlotForeign)
    postgres.drop_slots()
    postgres.run("DROP DATABASE other WITH (FORCE)", "SELECT pg_create_physical_replication_slot('menura_test')")
    found = slot_of(server)
    assert found is not None
    assert isinstance(slot_error(found, server, SOURCE, 0), SlotForeign)


def test_stream_when_the_server_has_removed_its_wal_then_the_slot_is_invalidated() -> None:
    with source_server(max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="32MB") as running:
        running.create_replication_user()
        publish(running)
        server = login(running)
        lsn = create_slot(server, SOURCE, SLOT)
        found = slot_of(server)
        assert found is not None
        assert found.safe_wal_bytes is not None
        for _ in range(4):
            running.run("SELECT pg_logical_emit_message(true, 'x', repeat('x', 20000000))", "CHECKPOINT")
        lost = slot_of(server)
        assert lost is not None
        assert (lost.is_lost, lost.wal_status) == (True, "lost")
        with pytest.raises(SlotInvalidated) as purged:
            open_wal_stream(server, SOURCE, SLOT, PUBLICATION, lsn)
        assert "max_slot_wal_keep_size" in purged.value.remedy


def test_stream_when_the_publication_is_not_there_then_its_error_is_a_gap(postgres: SourceServer) -> None:
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)", database="shop")
    server = login(postgres)
    lsn = create_slot(server, SOURCE, SLOT)
    with streaming(server, lsn) as stream:
        postgres.run("INSERT INTO t VALUES (1)", database="shop")
        reader = Reader(stream)
        kind, body = reader.message()
        while kind == "k":
            kind, body = reader.message()
    if kind == "E":  # a server of before version 18
        fields = {part[:1].decode(): part[1:].decode() for part in body.split(b"\0") if part}
        error = stream_error(fields, server, SOURCE, SLOT, PUBLICATION, lsn)
        assert isinstance(error, PublicationGone)
        lost = {"V": "FATAL", "C": "57P01", "M": "terminating connection due to administrator command"}
        assert isinstance(stream_error(lost, server, SOURCE, SLOT, PUBLICATION, lsn), SourceConnectionLost)


def test_wire_when_it_asks_for_rows_then_gets_texts_and_errors_leave_the_session(postgres: SourceServer) -> None:
    with closing(Wire.open(login(postgres), SOURCE)) as wire:
        assert wire.rows("SELECT 1, NULL, 'a', true WHERE true") == [("1", None, "a", "t")]
        assert wire.rows("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY") == []
        with pytest.raises(DatabaseError):
            wire.rows("SELECT 1/0")
        assert wire.rows("ROLLBACK") == []
        assert wire.rows("SELECT count(*) FROM generate_series(1, 10)") == [("10",)]


def test_wire_when_its_statement_is_cancelled_then_the_session_goes_on(postgres: SourceServer) -> None:
    connection = connect(login(postgres), SOURCE)
    with closing(Wire(connection, login(postgres), SOURCE)) as wire:
        failures: list[DatabaseError] = []

        def sleep() -> None:
            try:
                wire.rows("SELECT pg_sleep(300)")
            except DatabaseError as failed:
                failures.append(failed)

        sleeping = threading.Thread(target=sleep)
        sleeping.start()
        asleep = f"SELECT 1 FROM pg_stat_activity WHERE pid = {wire.backend_pid} AND wait_event = 'PgSleep'"
        wait_for("the statement to run", lambda: postgres.run(asleep))
        wires.cancel(connection, login(postgres), SOURCE)
        sleeping.join()
        assert failures[0].args[0]["C"] == "57014"
        assert wire.rows("SELECT 1") == [("1",)]


def test_wire_when_closed_amid_rows_then_its_server_process_ends(postgres: SourceServer) -> None:
    wire = Wire.open(login(postgres), SOURCE)
    wire.query("SELECT repeat('x', 1000) FROM generate_series(1, 1000000)")
    assert wire.receive_into(memoryview(bytearray(100)), 300) == 100
    wire.close()
    wire.close()
    assert wire.receive_into(memoryview(bytearray(100)), 300) == 0
    there = f"SELECT 1 FROM pg_stat_activity WHERE pid = {wire.backend_pid}"
    wait_for("the server's process to end", lambda: not postgres.run(there))
