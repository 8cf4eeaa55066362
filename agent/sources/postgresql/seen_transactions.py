"""What the stream has read, for dumps: which transactions a snapshot of the server must show, and which it may not.

Comes in: where the stream is, the transactions that it has finished, snapshots of the server. Goes out: for a snapshot
the position up to which it shows every change, and up to where the slot may be acknowledged. Thread-safe: the stream
writes, dumps ask. Nothing is durable.

A commit record is written, then it is flushed, and may wait for a synchronous standby, and only then is visible; but
the stream delivers it once it is flushed. So what the stream has read is no low watermark by itself: a transaction that
was read and that the snapshot does not show ends what is known. Of transactions that an earlier process had read only
their ids may still be running; until the server shows these, or they are known not to be committing, nothing is known.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from agent.sources.postgresql.positions import WalPosition

#: of those that no snapshot has shown yet; more than a server commits within a minute
MOST_TRANSACTIONS = 1 << 20
_XID_BITS = 1 << 32
#: the age of an id is its distance to the next one
SNAPSHOT_STATEMENT = (
    "SELECT pg_catalog.concat_ws(':', pg_catalog.pg_current_snapshot(), pg_catalog.age('3'::xid)::bigint + 3)"
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a primary answers to `SNAPSHOT_STATEMENT`; ids have 64 bits.

    >>> found = Snapshot.parse("10:20:10,14:22")
    >>> [found.shows(xid) for xid in (9, 10, 13, 14, 19, 20)]
    [True, False, True, False, True, False]
    >>> sorted(found.pending)
    [10, 14, 20, 21]
    """

    xmin: int
    #: one above the latest id that was over
    xmax: int
    running: frozenset[int]
    #: that no transaction has yet; 0: not above `xmax`
    next_xid: int = 0

    @classmethod
    def parse(cls, text: str) -> "Snapshot":
        """Of XMIN:XMAX:XID,...:NEXT, where the last has 32 bits; raises ValueError."""
        xmin, xmax, running, after = text.split(":")
        next_xid = int(xmax) + max(0, _distance(int(after), int(xmax)))
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in running.split(",") if xid), next_xid)

    @property
    def pending(self) -> frozenset[int]:
        """Ids of all that had begun and were not over: a snapshot lists none from `xmax` on."""
        return self.running | frozenset(range(self.xmax, self.next_xid))

    def shows(self, xid: int) -> bool:
        """Whether the effects of a transaction that has committed are in it; `xid` has the low 32 bits, or all 64."""
        whole = self.xmin + _distance(xid, self.xmin)
        return whole < self.xmin or (whole < self.xmax and whole not in self.running)


def _distance(xid: int, other: int) -> int:
    """How much later an id is, within half of the circle that 32 bits make."""
    ahead = (xid - other) % _XID_BITS
    return ahead if ahead < _XID_BITS // 2 else ahead - _XID_BITS


@dataclass(eq=False, slots=True)
class Hold:
    """A position that the slot is not acknowledged past, until it is released."""

    position: WalPosition
    _of: "SeenTransactions" = field(repr=False)

    def release(self) -> None:
        """May be called again."""
        self._of._release(self)


class SeenTransactions:
    """Of one source."""

    def __init__(self, most: int = MOST_TRANSACTIONS) -> None:
        self._lock = threading.Lock()
        self._most = most
        #: up to where the stream has read; None: it does not run
        self._read_to: WalPosition | None = None
        #: the latest that it has ever been
        self._latest: WalPosition | None = None
        #: id: where its commit record begins; in the order in which they were read
        self._commits: dict[int, int] = {}
        #: the latest id that was dropped for want of room
        self._dropped: int | None = None
        #: ids of transactions that may have committed before all that was read
        self._earlier: set[int] = set()
        self._holds: list[Hold] = []

    # --- the stream's side

    def begin(self, position: WalPosition, snapshot: Snapshot) -> None:
        """The stream begins at `position`; the snapshot is of its server, and later than what was read until there."""
        with self._lock:
            if self._latest is not None and not self._latest.is_comparable(position):
                self._latest = self._dropped = None
                self._commits.clear()
                self._earlier.clear()
            if self._latest is None or not self._latest.covers(position):
                self._earlier |= snapshot.pending
                self._latest = position
            self._read_to = position

    def read(self, transactions: Sequence[tuple[int, int, int]], position: WalPosition) -> None:
        """The stream has read up to `position`: (id, commit LSN, end LSN) of each transaction since the last call."""
        with self._lock:
            for xid, commit_lsn, _ in transactions:
                self._commits[xid] = commit_lsn
            while len(self._commits) > self._most:
                self._drop_oldest()
            self._read_to = position
            if self._latest is None or position.covers(self._latest):
                self._latest = position

    def _drop_oldest(self) -> None:
        xid = next(iter(self._commits))
        del self._commits[xid]
        if self._dropped is None or _distance(xid, self._dropped) > 0:
            self._dropped = xid

    def end(self) -> None:
        """The stream is over."""
        with self._lock:
            self._read_to = None

    def not_committing(self, xids: Iterable[int]) -> None:
        """These transactions, with ids of 32 bits, have written no commit record yet."""
        known = set(xids)
        with self._lock:
            self._earlier = {xid for xid in self._earlier if xid % _XID_BITS not in known}

    @property
    def is_settled(self) -> bool:
        """Whether every transaction that was read before this process began is known to be visible."""
        with self._lock:
            return not self._earlier

    def held(self) -> WalPosition | None:
        """The least position that a dump needs the slot to keep; None: there is none."""
        with self._lock:
            return min((hold.position for hold in self._holds), key=lambda position: position.lsn, default=None)

    # --- the dumps' side

    def read_to(self) -> WalPosition | None:
        """Up to where the stream has read; None: it does not run."""
        with self._lock:
            return self._read_to

    def low(self, read_to: WalPosition, snapshot: Snapshot) -> WalPosition | None:
        """The latest position of which the snapshot is known to show every transaction; None: nothing is known yet.

        `read_to` was asked for before the snapshot was taken, on the primary.
        """
        with self._lock:
            if not all(map(snapshot.shows, self._earlier)):
                return None
            if self._dropped is not None and _distance(self._dropped, snapshot.xmin) >= 0:
                return None
            hidden = [lsn for xid, lsn in self._commits.items() if lsn < read_to.lsn and not snapshot.shows(xid)]
            return read_to.at(min(hidden)) if hidden else read_to

    def prune(self, snapshot: Snapshot) -> None:
        """Forget what a snapshot of the primary shows: each later one does too."""
        with self._lock:
            self._commits = {xid: lsn for xid, lsn in self._commits.items() if not snapshot.shows(xid)}
            self._earlier = {xid for xid in self._earlier if not snapshot.shows(xid)}
            if self._dropped is not None and _distance(self._dropped, snapshot.xmin) < 0:
                self._dropped = None

    def hold(self, position: WalPosition) -> Hold:
        """Keep the slot from being acknowledged past `position`, until the hold is released."""
        hold = Hold(position, self)
        with self._lock:
            self._holds.append(hold)
        return hold

    def _release(self, hold: Hold) -> None:
        with self._lock:
            self._holds = [other for other in self._holds if other is not hold]
