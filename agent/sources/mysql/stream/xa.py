"""XA transactions: prepared in one group of the log, committed or rolled back in another one, maybe much later.

::

    MySQL     GTID   QUERY "XA START x"   rows   QUERY "XA END x"   XA_PREPARE x      then   GTID   QUERY "XA COMMIT x"
    MariaDB   GTID (prepared)             rows   QUERY "XA END x"   XA_PREPARE x      then   GTID   QUERY "XA COMMIT x"

The rows count at the commit, with its GTID, its time, its transaction's number and row numbers of then; after XA
ROLLBACK never. An XA_PREPARE with one_phase commits at once. The group that prepares is a transaction of its own for
positions and numbers, without rows.

The data's way: while the group that prepares goes by, its events are kept as they are, undecoded, and at the commit
they are injected into the decoder as if they stood there. So which tables get them (ahead, skipped, stopped) is decided
at the commit, and a table that began after the prepare has them too. All kept events of a source together take at most
KEPT_BYTES, a single transaction half of that: beyond it the oldest are dropped, or the large one itself. Those, and
what was prepared before this stream began, are read from the log again at their commit (`prepared_log`).

Durable is only where the transactions that are open at a cut's end were prepared (`prepared`). If the log doesn't have
a prepared transaction any more, what it changed is not known of any table that gets rows: an event says so at its
commit (`unlogged`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from agent.sources.mysql.log import constants as binlog
from agent.sources.mysql.log.events import EventBodyError, parse_query
from agent.sources.mysql.log.xid import Xid, parse_xa_prepare, parse_xa_statement
from agent.sources.mysql.native.decoder import Event
from agent.sources.mysql.positions import BinlogPosition
from agent.sources.mysql.read_position import ReadPosition
from agent.sources.mysql.stream.context import StreamContext
from agent.sources.mysql.stream.prepared import Group
from agent.sources.mysql.stream.prepared_log import NotPrepared, Part
from agent.sources.mysql.stream.table_router import TableRouter
from agent.sources.mysql.stream.unlogged import UnloggedRows

KEPT_BYTES = 64 << 20


@dataclass(slots=True)
class _Kept:
    """The events of one transaction."""

    parts: list[Part] = field(default_factory=list)
    size: int = 0


@dataclass(slots=True)
class _Prepared:
    at: Group
    #: None: they are read again
    kept: _Kept | None


class XaTransactions:
    """Those of one stream."""

    def __init__(self, context: StreamContext, router: TableRouter, unlogged: UnloggedRows, read: ReadPosition) -> None:
        self._decoder = context.decoder
        self._read = read
        self._router = router
        self._unlogged = unlogged
        self._file = context.prepared_file
        self._log = context.prepared_log
        begun = context.prepared_file.begin(read.position, context.position_kind)
        self._prepared = {xid: _Prepared(at, None) for xid, at in begun.items()}
        self._kept_bytes = 0
        #: the transaction that is being prepared; `_kept` is None where it is too large
        self.is_preparing = False
        self._kept: _Kept | None = None
        #: the transaction that is being committed
        self._parts: Iterator[Part] | None = None
        self._xid: Xid | None = None
        #: in the file since its last record, and what has changed since
        self._recorded = set(self._prepared)
        self._ended: dict[Xid, Group] = {}

    @property
    def is_committing(self) -> bool:
        return self._parts is not None

    # --- prepare

    def begins(self) -> None:
        """The events that follow belong to a transaction that is being prepared."""
        if self._decoder.keep_events:
            raise EventBodyError("an XA transaction that begins inside of another one")
        self._decoder.keep_events = self.is_preparing = True
        self._kept = _Kept()

    def keep(self, event: Event) -> bool:
        """An event of the transaction that is being prepared; False: it is none of its own."""
        if event.type == binlog.XA_PREPARE_LOG_EVENT:
            self._prepare(event)
            return True
        if event.type not in (binlog.QUERY_EVENT, binlog.EXECUTE_LOAD_QUERY_EVENT):
            return False
        if event.type != binlog.QUERY_EVENT or not parse_query(event.body).text.startswith("XA END "):
            self.take_kept()
            self._keep(event, len(event.body))
        return True

    def take_kept(self) -> None:
        """Take what the decoder has kept."""
        if events := self._decoder.take_kept():
            self._keep(events, len(events))

    def _keep(self, part: Part, size: int) -> None:
        kept = self._kept
        if kept is None:
            return
        kept.parts.append(part)
        kept.size += size
        self._kept_bytes += size
        if kept.size > KEPT_BYTES // 2:
            self._kept_bytes -= kept.size
            self._kept = None
        oldest = iter(self._prepared.values())
        while self._kept_bytes > KEPT_BYTES:
            prepared = next(oldest)
            self._kept_bytes -= prepared.kept.size if prepared.kept is not None else 0
            prepared.kept = None

    def _prepare(self, event: Event) -> None:
        xid, one_phase = parse_xa_prepare(event.body)
        self.take_kept()
        prepared = _Prepared(self._router.group(), self._kept)
        self._end_keeping()
        if one_phase:
            self._kept_bytes -= prepared.kept.size if prepared.kept is not None else 0
            self._commit(xid, prepared)
            return
        self._ended.pop(xid, None)
        self._recorded.discard(xid)
        self._prepared[xid] = prepared
        self._decoder.transaction_finished()

    def abandoned(self) -> None:
        """The server was killed while it wrote the group."""
        if self.is_preparing:
            self._decoder.take_kept()
            self._kept_bytes -= self._kept.size if self._kept is not None else 0
            self._end_keeping()

    def _end_keeping(self) -> None:
        self._decoder.keep_events = self.is_preparing = False
        self._kept = None

    # --- commit and rollback

    def statement(self, text: str) -> None:
        """An XA statement that stands outside of a transaction that is being prepared, or begins one."""
        verb, xid = parse_xa_statement(text)
        if verb == "START":
            self.begins()
        elif verb == "END":
            raise EventBodyError("the end of an XA transaction that has not begun")
        else:
            prepared = self._end(xid)
            if verb == "COMMIT":
                self._commit(xid, prepared)
            else:
                self._decoder.transaction_finished()

    def _end(self, xid: Xid) -> _Prepared | None:
        prepared = self._prepared.pop(xid, None)
        if prepared is not None:
            self._kept_bytes -= prepared.kept.size if prepared.kept is not None else 0
        if xid in self._recorded:
            self._recorded.discard(xid)
            self._ended[xid] = self._router.group()
        return prepared

    def _commit(self, xid: Xid, prepared: _Prepared | None) -> None:
        if prepared is not None and prepared.kept is not None:
            self._parts = iter(prepared.kept.parts)
        elif self._router.live_tables():
            self._parts = self._log.read(xid, prepared.at if prepared else None, self._router.group())
        else:
            self._parts = iter(())
        self._xid = xid

    def next_part(self) -> Event | None:
        """Inject the next events of the transaction that is being committed, or return what stands between them."""
        assert self._parts is not None
        try:
            part = next(self._parts, None)
        except NotPrepared:
            part = None
            why = f"the log does not hold any more where the transaction {self._xid} was prepared that was committed"
            self._unlogged.changed(self._router.live_tables(), why, self._decoder.transaction_position)
        if part is None:
            self._parts = None
            self._decoder.transaction_finished()
        elif isinstance(part, bytes):
            self._decoder.inject(part)
        else:
            return part
        return None

    # --- what is durable

    def cut_ends(self, cut: int, position: BinlogPosition) -> None:
        """Before the cut is sent, at whose end the stream may begin anew."""
        new = {xid: prepared.at for xid, prepared in self._prepared.items() if xid not in self._recorded}
        if new or self._ended or self._recorded:
            self._file.record(position, cut, new, self._ended)
            self._recorded |= new.keys()
            self._ended.clear()
