"""What is in a server's log, as a slot tells it by SQL: transactions in the order of their commits."""

import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from agent.sources.postgresql.positions import WalPosition, parse_lsn
from agent.sources.postgresql.seen_transactions import SNAPSHOT_STATEMENT, SeenTransactions, Snapshot
from tests.postgres import SourceServer

SLOT, PUBLICATION = "menura_test", "menura"
Values = dict[str, str | None]
DEADLINE_SECONDS = 120
_FACTS = """
    SELECT system_identifier::text, timeline_id, (SELECT oid::int FROM pg_database WHERE datname = current_database())
    FROM pg_control_system(), pg_control_checkpoint()
"""


@dataclass
class Change:
    table: str
    #: of an update of other columns than the key, and of an insert: None
    before: Values | None
    #: of a delete: None
    after: Values | None


@dataclass
class Transaction:
    xid: int
    #: where its commit record begins, and where it ends
    commit_lsn: int
    end_lsn: int
    changes: list[Change] = field(default_factory=list)


class Log:
    """A slot that is read by hand; what was read is told to `seen`, as a stream does."""

    def __init__(self, server: SourceServer, seen: SeenTransactions | None = None, *, is_new: bool = True) -> None:
        """`is_new`: with a slot and a publication of all tables, made here."""
        self._connection = server.connect("shop")
        self.seen = seen or SeenTransactions()
        self.transactions: list[Transaction] = []
        self._columns: dict[int, tuple[str, list[str]]] = {}
        if is_new:
            ask = self._connection.execute
            ask(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES WITH (publish_via_partition_root = true)")
            ask(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
        self.position = self._begin()

    def _begin(self) -> WalPosition:
        system, timeline, database = self._one(_FACTS)
        (confirmed,) = self._one(
            f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
        )
        position = WalPosition(parse_lsn(str(confirmed)), str(system), int(str(timeline)), int(str(database)))
        self.seen.begin(position, self.snapshot())
        return position

    def snapshot(self) -> Snapshot:
        return Snapshot.parse(str(self._one(SNAPSHOT_STATEMENT)[0]))

    def read(self) -> list[Transaction]:
        """All that is flushed and was not read yet."""
        (flushed,) = self._one("SELECT pg_current_wal_flush_lsn()::text")
        rows = self._connection.execute(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
            " 'publication_names', %s)",
            (SLOT, PUBLICATION),
        ).fetchall()
        found: list[Transaction] = []
        for (message,) in rows:
            self._message(bytes(message), found)
        self.transactions += found
        end = max([parse_lsn(str(flushed)), *(one.end_lsn for one in found)])
        self.position = self.position.at(max(self.position.lsn, end))
        self.seen.read([(one.xid, one.commit_lsn, one.end_lsn) for one in found], self.position)
        return found

    def _message(self, message: bytes, found: list[Transaction]) -> None:
        kind, body = message[:1], _Body(message[1:])
        match kind:
            case b"B":
                commit_lsn, _, xid = body.take("!QqI")
                found.append(Transaction(xid, commit_lsn, 0))
            case b"C":
                _, commit_lsn, end_lsn, _ = body.take("!BQQq")
                assert commit_lsn == found[-1].commit_lsn
                found[-1].end_lsn = end_lsn
            case b"R":
                (oid,), _, name, _ = body.take("!I"), body.text(), body.text(), body.take("!c")
                (count,) = body.take("!H")
                names = []
                for _ in range(count):
                    body.take("!B")
                    names.append(body.text())
                    body.take("!Ii")
                self._columns[oid] = (name, names)
            case b"I" | b"U" | b"D":
                (oid,) = body.take("!I")
                table, names = self._columns[oid]
                change = Change(table, None, None)
                while not body.is_empty:
                    (part,) = body.take("!c")
                    values = body.values(names)
                    if part == b"N":
                        change.after = values
                    else:
                        change.before = values
                found[-1].changes.append(change)

    def _one(self, statement: str) -> tuple[object, ...]:
        found = self._connection.execute(statement).fetchone()
        assert found is not None
        return found

    def close(self) -> None:
        self._connection.close()


class _Body:
    def __init__(self, body: bytes) -> None:
        self._body = body

    @property
    def is_empty(self) -> bool:
        return not self._body

    def take(self, format_: str) -> tuple:
        size = struct.calcsize(format_)
        found, self._body = struct.unpack(format_, self._body[:size]), self._body[size:]
        return found

    def text(self) -> str:
        text, _, self._body = self._body.partition(b"\0")
        return text.decode()

    def values(self, names: list[str]) -> Values:
        """Without those that an update did not change and that are stored apart."""
        (count,) = self.take("!H")
        assert count == len(names)
        found: Values = {}
        for name in names:
            (kind,) = self.take("!c")
            if kind == b"t":
                (size,) = self.take("!I")
                found[name], self._body = self._body[:size].decode(), self._body[size:]
            elif kind == b"n":
                found[name] = None
        return found


def wait_held(server: SourceServer, count: int = 1) -> None:
    """Until so many commits, or more, are in the log and wait for a standby."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    statement = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    while int(str(server.run(statement)[0][0])) < count:
        assert time.monotonic() < deadline, "no commit is held"
        time.sleep(0.01)


@contextmanager
def held_commits(server: SourceServer, *statements: str) -> Iterator[None]:
    """Commits that are in the log and not visible, since no standby is there that they wait for."""
    server.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
    threads = []
    try:
        _wait_for_setting(server, "nobody")
        # commits wait from when the checkpointer has read the setting, which it does before each checkpoint; the first
        # may have been asked for between the two
        server.run("CHECKPOINT")
        server.run("CHECKPOINT")
        for count, statement in enumerate(statements, 1):
            threads.append(threading.Thread(target=server.run, args=(statement,), kwargs={"database": "shop"}))
            threads[-1].start()
            wait_held(server, count)
        yield
    finally:
        server.run("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
        for thread in threads:
            thread.join(DEADLINE_SECONDS)
            assert not thread.is_alive(), "a commit is still held"


def _wait_for_setting(server: SourceServer, expected: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while server.run("SHOW synchronous_standby_names") != [(expected,)]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
