"""Tables to sync, and what their agents do about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from menura.landing import LandedPosition

from gateway.registry.keys import Problem, SourceKey


@dataclass(frozen=True, slots=True)
class Withheld:
    """What the policy of the database's host keeps back of a table's columns; see `menura.v1.Withheld`."""

    #: of the agent's; empty: it has none
    memory: str = ""
    columns: bool = False
    freed: int = 0


@dataclass(frozen=True, slots=True)
class TableEffective:
    """A table's state as the agent says; `state` is the name of a menura.v1.TableState.State."""

    database: str
    table: str
    state: str
    problem: Problem | None = None
    ignored_columns: tuple[str, ...] = ()
    #: that its policy lets be ordered for rows that the log does not hold
    most_rereads_per_hour: int = 0
    #: None: the agent does not tell it
    withheld: "Withheld | None" = None


@dataclass(frozen=True, slots=True)
class OtherServerSeen:
    """A server in place of the one that was read; see menura.v1.OtherServer."""

    identity: str
    server: str
    former_server: str
    lake_position: str
    oldest_position: str
    end_position: str
    goes_on_at: str
    lacking: str
    lacking_transactions: int | None


@dataclass(frozen=True, slots=True)
class TableDesired:
    """A table to sync. Exactly one of the five is set when the sync has not begun yet; none when it goes on."""

    database: str
    table: str
    start_position: LandedPosition | None = None
    start_text: str = ""
    #: with `start_text`: where the table was before somebody altered its position, and why
    altered_from: LandedPosition | None = None
    altered_why: str = ""
    start_oldest: bool = False
    start_now: bool = False
    #: the dump that brings its earlier rows
    start_dump: str = ""
    #: number of the newest event that says that earlier rows may differ from their source; 0: none does
    unlogged_gsn: int = 0
    #: number at which a dump of it that runs has begun; 0: none has
    dump_gsn: int = 0
    #: above `unlogged_gsn`, number at which a verification has begun that may take a dump's place; 0: none has
    compared_gsn: int = 0
    #: of one that goes on: the lake may lack rows of before its start
    earlier_rows_missing: bool = False
    #: an earlier sync has brought rows; only with a start
    was_synced: bool = False


@dataclass(frozen=True, slots=True)
class SourceDesired:
    source: str
    generation: int
    tables: tuple[TableDesired, ...]
    #: identity of the other server that somebody has accepted; see menura.v1.Replicate
    accepted_server: str = ""
    #: what the agent's operator should know of it; see menura.v1.DesiredState
    notice: str = ""


class TableRegistry(Protocol):
    def record_effective(
        self,
        key: SourceKey,
        generation: int,
        tables: Sequence[TableEffective],
        problem: Problem | None,
        at_us: int,
        other_server: OtherServerSeen | None = None,
        warnings: Sequence[Problem] = (),
    ) -> None:
        """Ignored when `generation` is not the desired one."""

    def record_source_problem(self, key: SourceKey, problem: Problem | None, at_us: int) -> None: ...

    def desired(self, key: SourceKey) -> SourceDesired:
        """The whole desired state; a table that stopped with an error is absent until it is started again."""

    def generations(self, tenants_sources: Sequence[SourceKey]) -> dict[SourceKey, int]:
        """Current generation of each; the gateway polls it to notice what the API changed."""
