"""Watches the servers of a source on sessions of its own, for what their stream of changes does not tell.

Goes out, by `Sights`: the log's end; how long the server keeps WAL for the slot; what snapshots of the server
show; and every so often a session for a look at the catalog, with the log's end of before. A failure here is not
reported: the stream that reads the same server says what is wrong with it. Nothing is durable.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass

from agent.errors import SourceConnectionLost, SourceError
from agent.runtime.state import LogKept
from agent.sources.postgresql.config import PostgresqlConfig
from agent.sources.postgresql.errors import SlotRetentionShort
from agent.sources.postgresql.positions import WalPosition, parse_lsn
from agent.sources.postgresql.seen_transactions import SNAPSHOT_STATEMENT
from agent.sources.postgresql.server.connection import (
    CANNOT_CONNECT_NOW,
    Connection,
    Facts,
    connect,
    end_of_wal,
    facts_of,
    rows,
    server_errors,
    setting_bytes,
    setting_seconds,
    sqlstate,
)
from agent.sources.postgresql.server.slot import Slot, find_slot

log = logging.getLogger("menura.watch")

POLL_SECONDS = 2.0
RECONNECT_SECONDS = 10.0
#: how often the catalog is looked at, and the slot
LOOK_SECONDS = 15.0
STOP_SECONDS = 5.0
#: of what the server may keep for the slot; less than this part left is told
_SHORT_PART = 0.2
DOING = "watching the replication slot"


def _ignored(_: object) -> None: ...


@dataclass(slots=True, kw_only=True)
class Sights:
    """Whom what is seen is told to, on the watch's thread."""

    #: where the log ends, of what can be read; None: it is not known
    end: Callable[[WalPosition | None], None]
    #: what the server of dumps answers to `SNAPSHOT_STATEMENT`, where that is a primary
    snapshot: Callable[[str], None] = _ignored
    #: the server keeps too little WAL for the slot; None: enough
    retention: Callable[[SlotRetentionShort | None], None] = _ignored
    #: how long the server keeps what the slot needs; None: not known
    kept: Callable[[LogKept | None], None] = _ignored
    #: in a session on the server whose changes are read, each time; raises pg8000's errors and OSError
    publication: Callable[[Connection], None] = _ignored
    #: a look at the catalog of the server whose changes are read; the log's end was asked for before. Raises pg8000's
    #: errors and OSError.
    look: Callable[[Connection, WalPosition], None] | None = None
    #: the server that answers is not the one that is followed, or has another timeline now
    other_log: Callable[[], None] = lambda: None
    #: the server goes down, and waits for the stream to acknowledge all that it sent or to end
    going_down: Callable[[], None] = lambda: None


class ServerWatch:
    """Of one source."""

    def __init__(self, config: PostgresqlConfig, slot: str, sights: Sights) -> None:
        self._config = config
        self._slot = slot
        self._sights = sights
        self._followed: Facts | None = None
        self._stopping = threading.Event()
        self._changed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{config.name}/watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def follow(self, facts: Facts) -> None:
        """Watch the server of these facts."""
        self._followed = facts
        self._changed.set()

    def look_soon(self) -> None:
        """At the catalog; e.g. since there are other tables to look for."""
        self._changed.set()

    def stop(self) -> None:
        self._stopping.set()
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        self._changed.wait()
        while not self._stopping.is_set():
            try:
                self._watch()
            except SourceError as error:
                self._sights.end(None)
                fields = {"source": self._config.name, "error": str(error)}
                log.debug("the log's end is not known", extra={"fields": fields})
                if sqlstate(error.__cause__) == CANNOT_CONNECT_NOW and self._followed is not None:
                    self._sights.going_down()
                self._stopping.wait(POLL_SECONDS if isinstance(error, SourceConnectionLost) else RECONNECT_SECONDS)
            except Exception:
                self._sights.end(None)
                log.exception("defect", extra={"fields": {"source": self._config.name}})
                self._stopping.wait(RECONNECT_SECONDS)

    def _watch(self) -> None:
        source, replication, client = self._config.name, self._config.replication, self._config.client
        with ExitStack() as sessions:
            changes = sessions.enter_context(closing(connect(replication, source)))
            dumps = changes
            if client != replication:
                dumps = sessions.enter_context(closing(connect(client, source)))
            rounds = 0
            while not self._stopping.is_set():
                with server_errors(DOING, replication, source):
                    facts = facts_of(changes, source)  # each time: a standby that is promoted keeps its sessions
                if self._is_other(facts):
                    return
                is_look = self._changed.is_set() or rounds % round(LOOK_SECONDS / POLL_SECONDS) == 0
                self._changed.clear()
                with server_errors(DOING, replication, source):
                    self._sights.publication(changes)
                    self._tell_end(changes, facts, is_look=is_look)
                with server_errors(DOING, client, source):
                    ((is_standby, snapshot),) = rows(dumps, _SNAPSHOT)
                if not is_standby:
                    self._sights.snapshot(str(snapshot))
                rounds += 1
                if not self._stopping.is_set():
                    self._changed.wait(POLL_SECONDS)

    def _is_other(self, facts: Facts) -> bool:
        """Told once: whoever reads finds out what it means, and names the server that is to be followed then."""
        followed = self._followed
        if followed is None or (facts.same_log(followed) and facts.timeline == followed.timeline):
            return False
        self._followed = None
        self._sights.other_log()
        self._stopping.wait(POLL_SECONDS)
        return True

    def _tell_end(self, connection: Connection, facts: Facts, *, is_look: bool) -> None:
        end = facts.position(parse_lsn(end_of_wal(connection, facts)))
        self._sights.end(end)
        if is_look:
            slot = find_slot(connection, self._slot)
            self._sights.kept(None if slot is None or slot.is_lost else log_kept(connection, slot))
            self._sights.retention(self._retention(connection, slot))
            if self._sights.look is not None:
                self._sights.look(connection, end)

    def _retention(self, connection: Connection, slot: Slot | None) -> SlotRetentionShort | None:
        if slot is None or slot.is_lost or slot.safe_wal_bytes is None:
            return None
        return retention_short(self._config.name, slot, setting_bytes(connection, "max_slot_wal_keep_size"))


def log_kept(connection: Connection, slot: Slot) -> LogKept:
    """Until so much WAL is written, or for so long once nobody reads from the slot; inside `server_errors`."""
    seconds = setting_seconds(connection, "idle_replication_slot_timeout") or None
    return LogKept(seconds, slot.safe_wal_bytes, is_unlimited=seconds is None and slot.safe_wal_bytes is None)


_SNAPSHOT = f"SELECT pg_is_in_recovery(), ({SNAPSHOT_STATEMENT})"


def retention_short(source: str, slot: Slot, keep_bytes: int | None) -> SlotRetentionShort | None:
    """None: the server has room for what is still to be written, for a while."""
    if slot.safe_wal_bytes is None or keep_bytes is None or slot.safe_wal_bytes > _SHORT_PART * keep_bytes:
        return None
    left = max(0, slot.safe_wal_bytes) >> 20
    return SlotRetentionShort(
        DOING,
        f"after {left} MiB more of WAL the server removes what the slot {slot.name} needs: max_slot_wal_keep_size is"
        f" {keep_bytes >> 20} MiB",
        data="Nothing is lost yet",
        remedy="See what keeps the agent from committing; to gain time run on the server: ALTER SYSTEM SET"
        f" max_slot_wal_keep_size = '{2 * keep_bytes >> 20}MB'; SELECT pg_reload_conf()",
        source=source,
    )
