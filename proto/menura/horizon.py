"""The horizon of a landing: what a new lake or a rebuilt database needs in place of entries that are removed.

::

    LANDING/horizons/00000000000000005000-00000000000000004200.json     behind entry 5000; entries from 4200 on stay

A horizon is the state that the entries up to its own have built, as the gateway's database has it: of each source where
its last cut ended, of each table where it is, its last cut, its foreign keys, why it stopped. Whoever begins with an
empty lake or an empty database goes on with the next entry; entries below `first_entry` are removed, with their files,
once the horizon is written. It has no rows: a lake that begins with it lacks each table's until a dump brings them.

A horizon is a file beside the log and not an entry of it: a log's reader would decode megabytes that say nothing new to
it. It is written once (put if absent) under a name that says both numbers, so that nobody needs to read it to know
where the log begins. Of several the one with the highest numbers counts; older ones are removed last, so that whoever
removes entries, after a kill too, knows where the entries began.

A reader MUST refuse a `format` above its own. Whatever `landing.py` says of positions and events holds here.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from menura.landing import (
    FORMAT,
    LandedAhead,
    LandedEvent,
    LandedPosition,
    LandingFormatError,
    decode_ahead,
    decode_event,
    position_from,
)

HORIZONS_FOLDER = "horizons"
#: the first format that has horizons
_FIRST_FORMAT = 10
_NAME = re.compile(r"([0-9]{20})-([0-9]{20})\.json")


@dataclass(frozen=True, slots=True)
class HorizonTable:
    database: str
    table: str
    #: in the source's `positions`
    position: int
    #: the last one with files of it; 0: none has any; None: not known
    last_cut: int | None
    earlier_rows_missing: str
    rows: int
    bytes: int
    last_commit_timestamp_us: int | None
    lake_rereads_per_hour: int
    #: what the registry keeps of rows that may be stale; it alone reads it
    unlogged: dict[str, Any] | None = None
    #: of one that an error stopped; '' for others
    stop_code: str = ""
    stop_message: str = ""
    #: the log's last word is that there is no table of this name any more
    is_dropped: bool = False
    #: the last FOREIGN_KEYS, and the last after which it is another table, in the order of their numbers
    key_events: tuple[LandedEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class HorizonSource:
    tenant: str
    source: str
    flavor: str
    generation: int
    #: of the last cut
    epoch: int
    cut: int
    last_gsn: int
    last_transaction_id: int
    #: the highest epoch that the log shows, of cuts and fences
    logged_epoch: int
    rows: int
    bytes: int
    transactions: int
    last_commit_timestamp_us: int | None
    #: where its last cut and its tables are, each once; the cut's is the first
    positions: tuple[LandedPosition, ...]
    #: as of the last cut
    ahead: tuple[LandedAhead, ...]
    tables: tuple[HorizonTable, ...]


@dataclass(frozen=True, slots=True)
class Horizon:
    landing: str
    #: behind which it stands
    entry: int
    first_entry: int
    committed_at_us: int
    sources: tuple[HorizonSource, ...]


@dataclass(frozen=True, slots=True, order=True)
class HorizonName:
    """What a horizon's file name says."""

    entry: int = 0
    #: of the log; entries below are removed, or will be
    first_entry: int = 1

    @property
    def path(self) -> str:
        """Relative to LANDING.

        >>> newest_horizon([HorizonName(5000, 4200).path, "horizons/x.json"])
        HorizonName(entry=5000, first_entry=4200)
        """
        return f"{HORIZONS_FOLDER}/{self.entry:020d}-{self.first_entry:020d}.json"


def horizon_names(paths: Iterable[str]) -> list[HorizonName]:
    """The horizons among the paths of files, the newest first."""
    found = [match for path in paths if (match := _NAME.fullmatch(path.rpartition("/")[2])) is not None]
    return sorted((HorizonName(int(match[1]), int(match[2])) for match in found), reverse=True)


def newest_horizon(paths: Iterable[str]) -> HorizonName:
    """The one that counts; entry 0 where there is none."""
    return next(iter(horizon_names(paths)), HorizonName())


def encode_horizon(horizon: Horizon) -> bytes:
    """The JSON document of a horizon."""
    return json.dumps({"format": FORMAT, **asdict(horizon)}, ensure_ascii=False, separators=(",", ":")).encode()


def decode_horizon(document: bytes) -> Horizon:
    """Read a horizon back; raises `LandingFormatError` for another format or a broken document."""
    try:
        facts = json.loads(document)
        if not _FIRST_FORMAT <= facts.pop("format") <= FORMAT:
            raise LandingFormatError(f"the horizon has a format other than {_FIRST_FORMAT} to {FORMAT}: upgrade")
        return Horizon(**{**facts, "sources": tuple(map(_decode_source, facts["sources"]))})
    except (KeyError, TypeError, ValueError, AttributeError) as broken:
        if isinstance(broken, LandingFormatError):
            raise
        raise LandingFormatError(f"the horizon is not a format {FORMAT} document: {broken!r}") from broken


def _decode_source(facts: dict[str, Any]) -> HorizonSource:
    nested = {
        "positions": tuple(map(position_from, facts["positions"])),
        "ahead": tuple(map(decode_ahead, facts["ahead"])),
        "tables": tuple(map(_decode_table, facts["tables"])),
    }
    return HorizonSource(**{**facts, **nested})


def _decode_table(facts: dict[str, Any]) -> HorizonTable:
    return HorizonTable(**{**facts, "key_events": tuple(map(decode_event, facts["key_events"]))})
