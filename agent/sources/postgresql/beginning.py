"""How the work on a Replicate begins: which server is there, its publication and slot, and where tables are read from.

Comes in: a Replicate, a connection to the server. Goes out: a `Beginning`. Where the slot does not go on where the
source's log was read, tables go on behind the gap, with a new slot if need be; where that is perhaps the wrong server,
nothing is read, published or made there before somebody has accepted it. Durable: the slot and the publication, on the
server.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache, partial

from menura.v1 import changes_pb2

from agent.capture.starts import Starts, resolve
from agent.capture.task import Task
from agent.errors import PositionPurged, SourceError, SourceRebuilt
from agent.runtime.state import SourceState
from agent.snapshot.coordinator import SnapshotCoordinator, TableStart
from agent.sources.postgresql.config import PostgresqlConfig
from agent.sources.postgresql.first_names import FirstNames
from agent.sources.postgresql.known_definitions import KnownDefinitions
from agent.sources.postgresql.positions import LastTransaction, WalPosition, WalPositionKind, lsn_text
from agent.sources.postgresql.seen_transactions import SNAPSHOT_STATEMENT, SeenTransactions, Snapshot
from agent.sources.postgresql.server.connection import Connection, Facts, connect, facts_of, rows, server_errors
from agent.sources.postgresql.server.history import has_commit
from agent.sources.postgresql.server.slot import create_slot, drop_slot, find_slot
from agent.sources.postgresql.server.wire import Wire, slot_error, slot_missing
from agent.sources.postgresql.stream.definition_store import UNCERTAIN, DefinitionStore, Known
from agent.sources.postgresql.stream.looks import Look, Looks, read_ends
from agent.sources.postgresql.stream.starts import Switches, WalStart, parse_history
from agent.table_positions import Stop, Table, TablePositions

log = logging.getLogger("menura.replicator")

#: tables that begin wait so long for what ran when they were published, before others go on without them
SETTLE_SECONDS = 5.0
#: between two looks at whether it is over
SETTLE_POLL_SECONDS = 0.05
#: how often definitions are read anew that change while tables begin
_LOOKS = 5
_LOST = "what the agent knew of its definition is lost: it may have changed since"

_IDLE = """
    SELECT backend_xid::text::bigint FROM pg_stat_activity
    WHERE backend_xid IS NOT NULL AND state IN ('idle in transaction', 'idle in transaction (aborted)')
"""


@dataclass(frozen=True, slots=True)
class Beginning:
    facts: Facts
    log: WalStart
    starts: Starts[WalPosition]
    table_positions: TablePositions[WalPosition]
    known: Mapping[Table, Known]
    #: tables of which that was lost: why
    lost: Mapping[Table, str]
    #: tables that may begin once transactions of before they were published are over
    unsettled: frozenset[Table] = field(default=frozenset())


class Beginnings:
    """Of one source."""

    def __init__(
        self,
        config: PostgresqlConfig,
        slot: str,
        coordinator: SnapshotCoordinator,
        state: SourceState,
        seen: SeenTransactions,
        shared: KnownDefinitions,
        looks: Looks,
        names: FirstNames,
    ) -> None:
        self._config = config
        self._slot = slot
        self._coordinator = coordinator
        self._state = state
        self._seen = seen
        self._shared = shared
        self._looks = looks
        self._names = names
        #: the server can't give what is behind the slot's position, though it has the slot
        self.unreadable: PositionPurged | None = None
        #: the server that was read last
        self._followed: Facts | None = None
        #: a place to which the log was read, and how the stream has found that it is another log before it
        self.rewritten: tuple[WalPosition, str] | None = None

    def begin(self, task: Task, store: DefinitionStore) -> Beginning:
        """Raises a `SourceError` where the source can't be read; its state has the server that waits for acceptance."""
        config, replicate = self._config, task.replicate
        server, source = config.replication, config.name
        with (
            closing(connect(server, source)) as connection,
            server_errors("asking the server for its log", server, source),
        ):
            facts = facts_of(connection, source)
            self._state.seen("postgresql", facts.version_text)
            end_lsn, slot = read_ends(connection).flushed_lsn, find_slot(connection, self._slot)
            confirmed = slot.confirmed_flush_lsn if slot is not None else None
            start_log = self._log(connection, facts, end_lsn, confirmed)

            def accepts(position: WalPosition, why: SourceRebuilt) -> bool:
                offered = start_log.offer(position, why)
                self._state.offers(offered)
                return bool(replicate.accepted_server) and replicate.accepted_server == offered.identity

            for position in _stored(replicate, start_log):  # before anything is made on the server
                try:
                    start_log.check_server(position)
                except SourceRebuilt as rebuilt:
                    if not accepts(position, rebuilt):
                        raise
            self._followed = facts
            self._names.begin(connection, facts.system, facts.database_oid)
            look, is_exact = self._make_ready(task, connection, facts, start_log)
            self._names.passed(look.names, ())
            starts, unsettled = self._resolve(replicate, start_log, look, accepts)
            table_positions = TablePositions(starts.positions, start_log.end())
            snapshot, idle = self._visible(connection)
            self._seen.begin(table_positions.start, snapshot)
            self._seen.not_committing(idle)
        known, lost = self._known(replicate, facts, starts, start_log, store, look, is_exact=is_exact)
        return Beginning(facts, start_log, starts, table_positions, known, lost, unsettled)

    # --- publication and slot

    def _make_ready(
        self, task: Task, connection: Connection, facts: Facts, start_log: WalStart
    ) -> tuple[Look, frozenset[Table]]:
        """Publish the tables, make the slot, and find where tables begin: the newest look, and the tables that look
        there as it shows them."""
        tables = [(sync.table.database, sync.table.table) for sync in task.replicate.tables]
        look = self._looks.look(connection, facts, tables)
        if not tables:
            return look, frozenset()
        confirmed, lost = self._slot_of(connection, task.replicate)
        deadline = time.monotonic() + SETTLE_SECONDS
        while look.unsettled and time.monotonic() < deadline:
            task.check()
            time.sleep(SETTLE_POLL_SECONDS)
            look = self._looks.look(connection, facts, tables)
        for _ in range(_LOOKS):
            before = look
            start_log.begins(read_ends(connection).flushed_lsn, confirmed, lost)
            look = self._looks.look(connection, facts, tables)
            if look.definitions == before.definitions:
                break
        same = {table for table in tables if look.definitions.get(table) == before.definitions.get(table)}
        return look, frozenset(same)

    def _slot_of(self, connection: Connection, replicate: changes_pb2.Replicate) -> tuple[int, PositionPurged | None]:
        """Where the slot is, and why it was made anew, if tables had been read with another one."""
        server, source = self._config.replication, self._config.name
        slot = find_slot(connection, self._slot)
        is_kept = any(sync.WhichOneof("start") is None for sync in replicate.tables)
        lost: SourceError | None = self.unreadable
        if slot is None:
            lost = lost or (slot_missing(source, self._slot, 0) if is_kept else None)
        else:
            lost = slot_error(slot, server, source, slot.confirmed_flush_lsn or 0) or lost
        if lost is not None and not isinstance(lost, PositionPurged):
            raise lost
        if slot is not None and lost is None and slot.confirmed_flush_lsn is not None:
            return slot.confirmed_flush_lsn, None
        if slot is not None:
            drop_slot(server, source, self._slot)
        confirmed = create_slot(server, source, self._slot)
        fields = {"source": source, "slot": self._slot, "lsn": lsn_text(confirmed)}
        log.info("replication slot made", extra={"fields": fields})
        self.unreadable = None
        return confirmed, lost

    # --- where tables begin

    def _resolve(
        self,
        replicate: changes_pb2.Replicate,
        start_log: WalStart,
        look: Look,
        accepts: Callable[[WalPosition, SourceRebuilt], bool],
    ) -> tuple[Starts[WalPosition], frozenset[Table]]:
        """And the tables that can't begin yet."""
        ready = changes_pb2.Replicate()
        ready.CopyFrom(replicate)
        del ready.tables[:]
        failed: list[changes_pb2.TableSync] = []
        waiting: dict[Table, str] = {}
        for sync in replicate.tables:
            table = (sync.table.database, sync.table.table)
            if table in look.errors:
                failed.append(sync)
            elif table in look.unsettled and self._begins_at_the_end(sync):
                waiting[table] = sync.dump
            else:
                ready.tables.append(sync)
        starts = resolve(ready, start_log, self._config, self._start_of, accepts)
        for sync in failed:
            table = (sync.table.database, sync.table.table)
            place = start_log.place_of(_stored_position(replicate, sync))
            starts.stopped.append(Stop(table, place, look.errors[table]))
            if sync.WhichOneof("start") == "dump":
                starts.awaited[sync.dump] = table
        starts.awaited |= {dump: table for table, dump in waiting.items() if dump}
        return starts, frozenset(waiting)

    def _begins_at_the_end(self, sync: changes_pb2.TableSync) -> bool:
        """Or before it, at none that was named: so changes of what runs now would be lacking."""
        start = sync.WhichOneof("start")
        if start == "dump":
            return self._start_of(sync.dump) is TableStart.KEYED
        return start in ("now", "oldest")

    def _start_of(self, dump: str) -> WalPosition | TableStart:
        start = self._coordinator.start_of(dump, WalPositionKind.LSN)
        assert isinstance(start, WalPosition | TableStart)
        return start

    def _known(
        self,
        replicate: changes_pb2.Replicate,
        facts: Facts,
        starts: Starts[WalPosition],
        start_log: WalStart,
        store: DefinitionStore,
        look: Look,
        *,
        is_exact: frozenset[Table],
    ) -> tuple[dict[Table, Known], dict[Table, str]]:
        """Of each table where it begins; and of which it is lost."""
        gaps = {(event.table.database, event.table.table) for event in starts.gaps}
        begun = {
            (sync.table.database, sync.table.table)
            for sync in replicate.tables
            if sync.WhichOneof("start") not in (None, "position")
        }
        stored = store.begin(facts.system, facts.database_oid, replicate.next_cut, starts.positions, begun | gaps)
        known: dict[Table, Known] = {}
        lost: dict[Table, str] = {}
        for table, position in starts.positions.items():
            definition, published = look.definitions.get(table), look.published.get(table, "")
            in_snapshot = self._shared.at(table, position)
            if table in stored:
                known[table] = stored[table]
            elif table in begun and in_snapshot is not None:
                known[table] = Known(in_snapshot, published=published)
            elif table in begun and table in is_exact and position == start_log.end():
                known[table] = Known(definition, published=published)
            else:
                is_lost = table in starts.kept
                if is_lost:
                    lost[table] = _LOST
                if is_lost and table in look.unsettled:  # columns may be left out for a while longer
                    published = UNCERTAIN
                known[table] = Known(definition, since_lsn=look.after_lsn, published=published)
        return known, lost

    # --- the server

    def _switches(self, facts: Facts) -> Switches:
        server, source = self._config.replication, self._config.name
        with closing(Wire.open(server, source, replication=True)) as wire:
            return parse_history("".join(wire.rows(f"TIMELINE_HISTORY {facts.timeline}")[0][1] or ""))

    def _log(self, connection: Connection, facts: Facts, end_lsn: int, confirmed_lsn: int | None) -> WalStart:
        server, source, former = self._config.replication, self._config.name, self._followed
        is_same_process = former is not None and former.same_log(facts) and former.started == facts.started

        @cache
        def has(last: LastTransaction) -> bool | None:
            return has_commit(connection, server, source, start_log.timeline_of(last.commit_lsn), last)

        def other_history(position: WalPosition) -> str:
            """A slot says itself that its log is the one that was read up to where it is: only a reader moves it."""
            if self.rewritten is not None and self.rewritten[0] == position:
                return self.rewritten[1]
            last = position.last
            if last is None or (confirmed_lsn is not None and last.end_lsn <= confirmed_lsn) or has(last) is not False:
                return ""
            place = lsn_text(last.commit_lsn)
            return f"the server's log has another record at {place} than the commit that was read there"

        def is_read_from(position: WalPosition, ended_lsn: int) -> bool:
            last = position.last
            if is_same_process or last is None:
                return is_same_process
            return ended_lsn < last.end_lsn <= end_lsn and has(last) is True

        switches = cache(partial(self._switches, facts))
        start_log = WalStart(
            source,
            facts,
            end_lsn,
            confirmed_lsn,
            switches,
            other_history=other_history,
            is_read_from=is_read_from,
        )
        return start_log

    def _visible(self, connection: Connection) -> tuple[Snapshot, Collection[int]]:
        """What the server of dumps shows, and transactions that have not begun to commit: of a standby all that it has
        replayed, which dumps ask for themselves."""
        client, source = self._config.client, self._config.name
        if client == self._config.replication:
            return self._snapshot(connection)
        with (
            closing(connect(client, source)) as dumps,
            server_errors("asking which transactions run", client, source),
        ):
            return self._snapshot(dumps)

    def _snapshot(self, connection: Connection) -> tuple[Snapshot, Collection[int]]:
        if rows(connection, "SELECT pg_is_in_recovery()")[0][0]:
            return Snapshot(0, 0, frozenset()), ()
        snapshot = Snapshot.parse(str(rows(connection, SNAPSHOT_STATEMENT)[0][0]))
        return snapshot, [xid for (xid,) in rows(connection, _IDLE)]


def _stored(replicate: changes_pb2.Replicate, start_log: WalStart) -> list[WalPosition]:
    """From where tables are read on."""
    kept = [sync for sync in replicate.tables if sync.WhichOneof("start") is None]
    found = {_stored_position(replicate, sync).SerializeToString(deterministic=True) for sync in kept}
    messages = [changes_pb2.Position.FromString(one) for one in sorted(found)]
    return [start_log.stored(message) for message in messages if message.kind]


def _stored_position(replicate: changes_pb2.Replicate, sync: changes_pb2.TableSync) -> changes_pb2.Position:
    if sync.WhichOneof("start") is not None:
        return sync.altered_from if sync.HasField("altered_from") else sync.position
    return next((ahead.position for ahead in replicate.ahead if sync.table in ahead.tables), replicate.position)
