"""Dumps, verifications and repairs that are not over."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from menura.landed_digest import LandedFocus

from gateway.registry.gateways import GatewayRun
from gateway.registry.keys import Problem, SourceKey


@dataclass(frozen=True, slots=True)
class KeyRange:
    """See menura.v1.DumpRange."""

    number: int
    lower: str
    upper: str


@dataclass(frozen=True, slots=True)
class DumpPlanned:
    """See menura.v1.DumpPlan; whoever makes one of a message sees to it that the ranges leave nothing out."""

    key: tuple[str, ...]
    ranges: tuple[KeyRange, ...]
    estimated_rows: int | None
    estimated_bytes: int | None
    runway_seconds: int | None
    needed_seconds: int | None
    warning: str
    least_key: float | None = None
    greatest_key: float | None = None


@dataclass(frozen=True, slots=True)
class DumpDesired:
    """A dump that is not over; see menura.v1.DumpOrder."""

    dump: str
    database: str
    table: str
    priority: int
    paused: bool
    workers: int
    rows_per_second: int
    bytes_per_second: int
    started_gsn: int
    plan: DumpPlanned | None
    remaining: tuple[KeyRange, ...]
    next_chunk: int
    #: from now on it waits so long before it begins
    begins_in_seconds: int = 0
    #: a verification: its chunks are digests
    verifies: bool = False
    #: of these rows alone; of no verification it is a repair
    focus: LandedFocus | None = None
    #: of a verification: it may take a dump's place
    tells_anew: bool = False

    @property
    def repairs(self) -> bool:
        return self.focus is not None and not self.verifies


@dataclass(frozen=True, slots=True)
class DumpsDesired:
    generation: int
    dumps: tuple[DumpDesired, ...]


@dataclass(frozen=True, slots=True)
class DumpSeen:
    """What a dump is doing, as the agent says; `state` is the name of a menura.v1.DumpStatus.State.

    `held` is the name of a menura.v1.DumpStatus.Held; empty: nothing holds it, or the agent does not tell it.
    """

    dump: str
    state: str
    reason: str
    rows_per_second: int
    bytes_per_second: int
    uncommitted_rows: int
    held: str = ""


class DumpRegistry(Protocol):
    def order_verifications(self, gateway: GatewayRun, at_us: int) -> int:
        """Order the verifications whose turn it is by this clock, of sources that the gateway owns; how many."""

    def dumps(self, key: SourceKey) -> DumpsDesired:
        """All dumps of the source that are not over, with what is left of each by the ledger; none in quarantine."""

    def dump_generations(self, keys: Sequence[SourceKey]) -> dict[SourceKey, int]:
        """Of the desired dumps; grows with each command, each plan and each DUMP_STARTED or DUMPED event."""

    def record_dump_plan(self, key: SourceKey, dump: str, plan: DumpPlanned, at_us: int) -> None:
        """The first one counts; ignored when it has one or is over."""

    def record_dump_status(self, key: SourceKey, dumps: Sequence[DumpSeen], at_us: int) -> None: ...

    def record_dump_failed(self, key: SourceKey, dump: str, problem: Problem, at_us: int) -> None:
        """The dump is over; its table's sync says that earlier rows are missing and why."""
