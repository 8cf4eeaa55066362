"""At which cuts of a source its tables can be read together, and what each table is there.

Comes in: `_menura/cuts`, `events` and `errors`, opened once each. Goes out: a source's boundaries, the newest one at or
before a cut or a time, and of each table its versions there, or why it is not what its source's table was. Only a
batch's last cut is a boundary: a table that was tried again is recorded at a later cut, which others do not have yet.
Nothing is written.

A time is answered by the last boundary before the first one with a later transaction. Without such a later one nobody
knows whether all of that time has come.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deltalake import DeltaTable
from menura.change_batch import GSN

from spark_sink.lake.delta_table import quoted, scan, schema_of, text
from spark_sink.lake.record_rows import number_of
from spark_sink.lake.records import WHOLE, in_order
from spark_sink.work import TableId

_DUMP_STARTED, _DUMPED = "DUMP_STARTED", "DUMPED"
_SYNC_STARTED, _SYNC_STOPPED = "SYNC_STARTED", "SYNC_STOPPED"
_LOG_GAP, _FOREIGN_KEYS = "LOG_GAP", "FOREIGN_KEYS"
_KINDS = (_DUMP_STARTED, _DUMPED, _SYNC_STARTED, _SYNC_STOPPED, _FOREIGN_KEYS)
_KEEPS = "delta.logRetentionDuration"
_SINCE = "since_gsn"


@dataclass(frozen=True, slots=True)
class Boundary:
    """A cut at which every table of its source has a version."""

    cut: int
    #: no transaction up to it committed later, by the source's clock; 0: it has none
    committed_us: int
    #: when the lake had it
    applied_at_us: int


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Of a source, by cut."""

    found: Sequence[Boundary]

    @property
    def newest(self) -> Boundary:
        return self.found[-1]

    def at_cut(self, cut: int) -> Boundary | None:
        """The newest one up to this cut."""
        place = bisect_right(self.found, cut, key=lambda each: each.cut)
        return self.found[place - 1] if place else None

    def at_time(self, at_us: int) -> Boundary | None:
        """The newest one without a transaction after this time."""
        place = bisect_right(self.found, at_us, key=lambda each: each.committed_us)
        return self.found[place - 1] if place else None

    def is_complete(self, at_us: int) -> bool:
        """Whether a transaction after this time is there, so that none of before is still to come."""
        return bool(self.found) and self.newest.committed_us > at_us

    def is_kept(self, boundary: Boundary, since_us: int) -> bool:
        """Whether it was the newest one at this time, or later: what was replaced before may be removed."""
        place = bisect_right(self.found, boundary.cut, key=lambda each: each.cut)
        return place == len(self.found) or self.found[place].applied_at_us >= since_us


@dataclass(frozen=True, slots=True)
class TableState:
    """A table at a boundary, as `cuts` has it."""

    changelog_version: int | None
    current_version: int | None
    #: its folder was lost later, and these versions are those of the lost one
    is_lost: bool = False


@dataclass(slots=True)
class Condition:
    """How a table stood to its source's at a boundary; all empty: it is equal to it."""

    sync_stopped: str = ""
    #: the dump that had begun and not ended
    dump: str = ""
    #: by number, why rows may differ from those of the source until a dump has brought them
    stale: dict[int, str] = field(default_factory=dict)
    earlier_rows_missing: str = ""
    _dump_gsn: int = 0
    #: of these the numbers of gaps of the log
    _gaps: set[int] = field(default_factory=set)
    #: number of the first event that told of its foreign keys: what they did before a dump began it alone brings
    keys_gsn: int = 0

    def follow(self, event: Mapping[str, Any]) -> None:
        """The next event of the table."""
        kind, gsn = event["kind"], event[GSN]
        if kind == _SYNC_STARTED:
            self.sync_stopped, self.earlier_rows_missing = "", event["statement"] or ""
        elif kind == _SYNC_STOPPED:
            self.sync_stopped = event["statement"] or "it was asked for"
        elif kind == _DUMP_STARTED:
            self.dump, self._dump_gsn = event["dump"], gsn
        elif kind == _DUMPED and event["dump"] == self.dump:
            self.dump, self.earlier_rows_missing = "", ""
            self.stale = {at: why for at, why in self.stale.items() if at > self._dump_gsn}
        if event["unlogged_changes"]:
            self.stale[gsn] = event["unlogged_changes"]
        if kind == _LOG_GAP:
            self._gaps.add(gsn)
        if kind == _FOREIGN_KEYS and not self.keys_gsn:
            self.keys_gsn = gsn

    def proven(self, since_gsn: int) -> None:
        """The table was equal to its source's, by a verification that began at this number and stands for a dump: gaps
        of before are over. Keys that are told later change nothing of that."""
        if not 0 < self.keys_gsn <= since_gsn:
            self.stale = {at: why for at, why in self.stale.items() if at not in self._gaps or at > since_gsn}


def read_boundaries(cuts: DeltaTable | None, tenant: str, source: str) -> Boundaries:
    """A lake that an earlier version wrote has none from then."""
    if cuts is None or WHOLE not in schema_of(cuts).names:
        return Boundaries(())
    query = (
        "SELECT cut, max(last_commit_timestamp_us) AS committed_us, min(applied_at_us) AS applied_at_us FROM t "  # noqa: S608
        f"WHERE {_of_source(tenant, source)} AND {WHOLE} GROUP BY cut ORDER BY cut"
    )
    found: list[Boundary] = []
    committed_us = 0
    for row in scan(cuts, query).read_all().to_pylist():
        committed_us = max(committed_us, row["committed_us"] or 0)  # a server's clock may go back
        found.append(Boundary(row["cut"], committed_us, row["applied_at_us"]))
    return Boundaries(found)


def keep_hours(cuts: DeltaTable) -> int | None:
    """How long old versions stay; None while nothing of the records was removed yet."""
    words = cuts.metadata().configuration.get(_KEEPS, "").split()
    return int(words[1]) if len(words) == 3 and words[1].isdigit() else None


def states_at(cuts: DeltaTable, tenant: str, source: str, cut: int) -> dict[TableId, TableState]:
    """Each table that the lake had at this cut."""
    order = f"cut DESC, {number_of(cuts)} DESC, applied_at_us DESC"
    numbered = (
        f'SELECT *, row_number() OVER (PARTITION BY "database", "table" ORDER BY {order}) AS place FROM t '  # noqa: S608
        f'WHERE {_of_source(tenant, source)} AND cut <= {cut} AND "table" IS NOT NULL'
    )
    rows = scan(cuts, f"SELECT * FROM ({numbered}) WHERE place = 1").read_all().to_pylist()  # noqa: S608
    later = _lowest_after(cuts, tenant, source, cut)
    found = {}
    for row in rows:
        table = TableId(tenant, source, row["database"], row["table"])
        version, lowest = row["changelog_version"], later.get(table)
        is_lost = version is not None and lowest is not None and lowest < version
        found[table] = TableState(version, row["current_version"], is_lost)
    return found


def _lowest_after(cuts: DeltaTable, tenant: str, source: str, cut: int) -> dict[TableId, int]:
    """Versions never fall, unless a table was made anew."""
    query = (
        'SELECT "database", "table", min(changelog_version) AS lowest FROM t '  # noqa: S608
        f"WHERE {_of_source(tenant, source)} AND cut > {cut} AND changelog_version IS NOT NULL "
        'GROUP BY "database", "table"'
    )
    rows = scan(cuts, query).read_all().to_pylist()
    return {TableId(tenant, source, row["database"], row["table"]): row["lowest"] for row in rows}


def conditions_at(
    events: DeltaTable | None, validation: DeltaTable | None, tenant: str, source: str, cut: int
) -> dict[TableId, Condition]:
    """Of the tables with events of this kind."""
    if events is None:
        return {}
    held = schema_of(events).names
    names = ["database", "table", "kind", GSN, "statement", "dump", "unlogged_changes"]
    chosen = ", ".join(quoted(name) if name in held else f"NULL AS {quoted(name)}" for name in names)
    kinds = ", ".join(map(text, _KINDS))
    unlogged = "OR unlogged_changes IS NOT NULL" if "unlogged_changes" in held else ""
    query = (
        f"SELECT {chosen} FROM t WHERE {_of_source(tenant, source)} AND cut <= {cut} "  # noqa: S608  (own literals)
        f'AND ("kind" IN ({kinds}) {unlogged}) ORDER BY cut, {quoted(GSN)}, "kind"'
    )
    found: dict[TableId, Condition] = {}
    for row in scan(events, query).read_all().to_pylist():
        found.setdefault(TableId(tenant, source, row["database"], row["table"]), Condition()).follow(row)
    for table, since_gsn in proofs_at(validation, tenant, source, cut).items():
        if table in found:
            found[table].proven(since_gsn)
    return found


def proofs_at(validation: DeltaTable | None, tenant: str, source: str, cut: int) -> dict[TableId, int]:
    """Of tables that were proven to be equal up to this cut, the number at which began what stands for a dump."""
    if validation is None or _SINCE not in schema_of(validation).names:
        return {}
    query = (
        f'SELECT "database", "table", max({_SINCE}) AS since FROM t WHERE {_of_source(tenant, source)} '  # noqa: S608
        f"AND cut <= {cut} AND chunk IS NULL AND verdict = 'equal' AND {_SINCE} > 0 "
        'GROUP BY "database", "table"'
    )
    rows = scan(validation, query).read_all().to_pylist()
    return {TableId(tenant, source, row["database"], row["table"]): row["since"] for row in rows}


def stops_at(errors: DeltaTable | None, tenant: str, source: str, cut: int) -> dict[TableId, str]:
    """The code of each table that had stopped at this cut, or before."""
    if errors is None:
        return {}
    query = (
        f'SELECT "database", "table", code FROM t WHERE {_of_source(tenant, source)} AND cut <= {cut} '  # noqa: S608
        f"ORDER BY {in_order(errors, 'at_us')}"
    )
    rows: Iterable[dict[str, Any]] = scan(errors, query).read_all().to_pylist()
    found = {TableId(tenant, source, row["database"], row["table"]): row["code"] for row in rows}
    return {table: code for table, code in found.items() if code}


def _of_source(tenant: str, source: str) -> str:
    return f"tenant = {text(tenant)} AND source = {text(source)}"
