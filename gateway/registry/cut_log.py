"""The cut log, which the database follows, and what it says of sources."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from menura.horizon import Horizon
from menura.landing import LandedAhead, LandedPosition, LogEntry
from menura.naming import TableName

from gateway.registry.keys import Problem, SourceKey


class LandingOther(Exception):
    """The database follows another landing's log; says which."""


def sources_of(entry: LogEntry) -> set[SourceKey]:
    """Those of which it has cuts or fences."""
    cuts = {SourceKey(cut.tenant, cut.source) for cut in entry.cuts}
    return cuts | {SourceKey(fence.tenant, fence.source) for fence in entry.fences}


@dataclass(frozen=True, slots=True)
class Logged:
    """What the cut log says of a source, up to an entry; the zero values: nothing."""

    #: the highest of its cuts and fences
    epoch: int = 0
    cut: int = 0
    last_gsn: int = 0
    #: and may be further than this says
    is_held_back: bool = False


@dataclass(frozen=True, slots=True)
class Followed:
    """How far the database has followed a cut log, and what it says of some sources there."""

    applied_entry: int
    sources: dict[SourceKey, Logged]


@dataclass(frozen=True, slots=True)
class SourceCommitted:
    """Where a source's last committed cut ended; the zero values mean that there is none yet."""

    epoch: int = 0
    cut: int = 0
    last_gsn: int = 0
    last_transaction_id: int = 0
    position: LandedPosition | None = None
    ahead: tuple[LandedAhead, ...] = field(default=())
    #: why cuts that stand in the log are held back; None: they are not
    quarantine: Problem | None = None
    #: some wait for a lock, so the log may be further
    is_blocked: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """A source that is held back: the entries of the log that its held cuts stand in, the first and the last."""

    key: SourceKey
    entry: int
    last_entry: int


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Sources of an entry whose part of it is in the log, and is not applied."""

    quarantined: frozenset[SourceKey] = frozenset()
    #: another transaction of the database holds a row of theirs
    blocked: frozenset[SourceKey] = frozenset()


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A transaction that holds what others wait for."""

    process: int
    #: as the server says it
    since: str


@dataclass(frozen=True, slots=True)
class Removable:
    """Up to where nobody needs the cut log any more, and who needs what comes next."""

    #: all up to it is in the database, and in every lake for good; 0: nothing is
    entry: int
    #: in words; '': nobody, but that more has not been committed
    held_by: str = ""
    #: when the lake of which `held_by` speaks was heard last; 0: never, or it speaks of none
    heard_at_us: int = 0


class CutLogRegistry(Protocol):
    def claim_landing(self, url: str, identity: str) -> str:
        """The database's name for this landing, which is the only one that it follows. Raises `LandingOther`.

        The first gateway's `url` becomes the name; whoever reaches the same landing by another address gets it too.
        """

    def followed(self, landing: str, keys: Sequence[SourceKey]) -> Followed:
        """At one moment."""

    def applied_entry(self, landing: str) -> int:
        """Number of the last cut log entry of this landing that the database holds; 0 for none."""

    def apply_entry(self, landing: str, entry: LogEntry) -> HeldBack:
        """Follow the cut log: positions, started and stopped tables, counts, the ledger of chunks; idempotent.

        A stopped table's sync becomes 'failed' with its position, and the source's generation grows. A source that
        another transaction holds delays no other one.
        """

    def blocked(self, landing: str) -> list[Held]:
        """Sources whose part of entries of this landing waits for a lock."""

    def lock_holders(self) -> Mapping[LockHolder, str]:
        """Who holds what others wait for in the database, in words; none where it can't say."""

    def apply_blocked(self, landing: str, key: SourceKey, entry: LogEntry) -> bool:
        """Apply what an entry has of such a source; False while it is locked. Entries come in order."""

    def held(self, landing: str, *, asked: bool) -> list[Held]:
        """Sources in quarantine by cuts of this landing; `asked`: only those that somebody wants to be tried again."""

    def apply_held(self, landing: str, key: SourceKey, entry: LogEntry) -> bool:
        """Apply a held entry's cuts of one source; False when it is refused again, which is then no longer asked for.

        With the last entry the quarantine ends. Entries come in order.
        """

    def removable(self, landing: str) -> Removable:
        """See there. Lakes are those whose sinks have reported to the database; without any nothing is removable."""

    def horizon(self, landing: str, identity: str, first_entry: int, at_us: int) -> Horizon:
        """What the database has by the log, at one moment."""

    def apply_horizon(self, landing: str, horizon: Horizon) -> None:
        """In place of all entries up to its own; idempotent. What the database has of before is replaced."""

    def committed(self, key: SourceKey) -> SourceCommitted: ...

    def last_cuts(self, key: SourceKey) -> dict[TableName, int | None]:
        """Of each table of the source the last committed cut with files of it; 0: none; None: not known."""
