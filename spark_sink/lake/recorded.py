"""Whether a table's folders hold what the sink has recorded: one may be lost, or an older copy put back.

Comes in: `_menura/cuts`, which has the versions of both of a table's Delta tables at each boundary. Goes out: the last
ones of each table, and a `LakeTableLost` where a folder has none or an older one. A version never falls, whoever else
writes to the folder, so a lower one is another copy. What is wrong then is found before anything is written: with
what comes next alone, the table would be made anew and lack all that came before.

The landing has all rows that ever were, so a lost table is given them again from the log's first entry on: what a copy
holds is left as it is, and the changelog, too, is whole again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deltalake import DeltaTable
from menura.views.definition import VIEW_SOURCE

from spark_sink.errors import LakeTableLost, PredecessorMissing
from spark_sink.lake.delta_table import open_table, quoted, scan, schema_of, text
from spark_sink.lake.record_rows import number_of
from spark_sink.lake.records import DEPARTURE, MERGED_GSN, NONE_BEGUN, BegunAnew
from spark_sink.lake.table_folders import table_folder
from spark_sink.landed.storage import open_storage
from spark_sink.work import CHANGELOG, CURRENT, CutSeen, TableFile, TableId, Work

_TABLE = ("tenant", "source", "database", "table")


@dataclass(frozen=True, slots=True)
class Recorded:
    """Versions that a table's folders must have at least; None: nothing is recorded."""

    changelog: int | None = None
    current: int | None = None
    #: number of the event with which it begins anew, so that it may leave cuts out: until something of it is written
    begins_at_gsn: int = 0

    def followed_by(self, changelog: int | None, current: int | None) -> "Recorded":
        """With later versions, where they are known."""
        return Recorded(
            self.changelog if changelog is None else changelog,
            self.current if current is None else current,
            begins_at_gsn=self.begins_at_gsn if changelog is None else 0,
        )


def check_predecessors(table: TableId, work: Sequence[Work], held_cut: int) -> None:
    """Each file's predecessor is in the table, or among the work before it. Raises `PredecessorMissing`."""
    for each in work:
        if isinstance(each, TableFile) and each.cut > held_cut:
            if each.previous_cut is not None and each.previous_cut > held_cut:
                raise PredecessorMissing(
                    "following the cut log",
                    f"{each.path} follows cut {each.previous_cut} of the table, which has cut {held_cut}"
                    if held_cut
                    else f"{each.path} follows cut {each.previous_cut} of the table, which has none",
                    data="Changes between are missing, so nothing was written; the table stays at its last version;"
                    " other tables go on",
                    remedy=f"Begin the table anew: {table.resync}",
                    **table.where(each.cut),
                )
            held_cut = each.cut


NOTHING = Recorded()


def recorded_tables(
    cuts: DeltaTable | None, begun: Mapping[TableId, BegunAnew] = NONE_BEGUN
) -> dict[TableId, Recorded]:
    """Of each table the last versions in `cuts`, which are lower than earlier ones where it was made anew.

    `begun`: of tables that have begun anew; one of which nothing is written since then has no versions. Not of views: a
    lost one is computed again, not read from the landing.
    """
    changelogs = _last_versions(cuts, f"{CHANGELOG}_version")
    currents = _last_versions(cuts, f"{CURRENT}_version")
    waiting = {
        table: Recorded(begins_at_gsn=anew.gsn)
        for table, anew in begun.items()
        if table not in changelogs or changelogs[table].entry < anew.entry
    }
    held = {
        table: Recorded(
            changelogs[table].version if table in changelogs else None,
            currents[table].version if table in currents else None,
        )
        for table in changelogs | currents
        if table.source != VIEW_SOURCE
    }
    return held | waiting


@dataclass(frozen=True, slots=True)
class _Written:
    version: int
    entry: int


def _last_versions(cuts: DeltaTable | None, column: str) -> dict[TableId, _Written]:
    if cuts is None:
        return {}
    names = ", ".join(map(quoted, _TABLE))
    order = f"cut DESC, {number_of(cuts)} DESC, applied_at_us DESC"
    numbered = (
        f"SELECT {names}, {column}, entry, row_number() OVER (PARTITION BY {names} ORDER BY {order})"  # noqa: S608
        f" AS place FROM t WHERE {column} IS NOT NULL"
    )
    found = scan(cuts, f"SELECT * FROM ({numbered}) WHERE place = 1").read_all()  # noqa: S608  (constants)
    return {TableId(*(row[name] for name in _TABLE)): _Written(row[column], row["entry"]) for row in found.to_pylist()}


def boundary_of(cuts: DeltaTable, table: TableId, cut: int) -> tuple[int | None, int | None] | None:
    """The versions of a table's changelog and current state at a cut; None where it has no row up to it."""
    names = " AND ".join(f"{quoted(name)} = {text(getattr(table, name))}" for name in _TABLE)
    order = f"cut DESC, {number_of(cuts)} DESC, applied_at_us DESC"
    query = f"SELECT * FROM t WHERE {names} AND cut <= {cut} ORDER BY {order} LIMIT 1"  # noqa: S608  (own literals)
    found = scan(cuts, query).read_all().to_pylist()
    return (found[0]["changelog_version"], found[0]["current_version"]) if found else None


def waiting_tables(cuts: DeltaTable | None) -> dict[TableId, CutSeen]:
    """The tables of which changes waited to be merged when they were written last, each with that boundary."""
    if cuts is None or MERGED_GSN not in schema_of(cuts).names:
        return {}
    of_table = ", ".join(map(quoted, _TABLE))
    order = f"cut DESC, {number_of(cuts)} DESC, applied_at_us DESC"
    numbered = f"SELECT *, row_number() OVER (PARTITION BY {of_table} ORDER BY {order}) AS place FROM t"  # noqa: S608
    query = f"SELECT * FROM ({numbered}) WHERE place = 1 AND {MERGED_GSN} IS NOT NULL"  # noqa: S608  (constants)
    return {
        TableId(*(row[name] for name in _TABLE)): CutSeen(
            row["tenant"], row["source"], 0, row["cut"], row["entry"], 0, 0, row["last_commit_timestamp_us"]
        )
        for row in scan(cuts, query).read_all().to_pylist()
    }


def departed_tables(cuts: DeltaTable | None) -> dict[TableId, str]:
    """In what tables were not their sources' when they were written last; those that are not named were."""
    if cuts is None or DEPARTURE not in schema_of(cuts).names:
        return {}
    names = ", ".join(map(quoted, _TABLE))
    order = f"cut DESC, {number_of(cuts)} DESC, applied_at_us DESC"
    numbered = (
        f"SELECT {names}, {DEPARTURE}, row_number() OVER (PARTITION BY {names} ORDER BY {order}) AS place"  # noqa: S608
        " FROM t WHERE current_version IS NOT NULL"
    )
    query = f"SELECT * FROM ({numbered}) WHERE place = 1 AND {DEPARTURE} IS NOT NULL"  # noqa: S608  (constants)
    found = scan(cuts, query).read_all().to_pylist()
    return {TableId(*(row[name] for name in _TABLE)): row[DEPARTURE] for row in found}


def check_held(
    table: TableId, cut: int, recorded: Recorded, changelog: DeltaTable | None, current: DeltaTable | None
) -> None:
    """Raises `LakeTableLost`."""
    for kind, version, held in ((CHANGELOG, recorded.changelog, changelog), (CURRENT, recorded.current, current)):
        if version is not None and (held is None or held.version() < version):
            raise _lost(table, cut, kind, version, held)


def lost_tables(lake: str, tables: Mapping[TableId, Recorded]) -> dict[TableId, LakeTableLost]:
    """Those of the tables whose folders do not hold what is recorded; one look at a file for each that does."""
    lost = {}
    for table, recorded in tables.items():
        folders = {kind: f"{table_folder(lake, table)}/{kind}" for kind in (CHANGELOG, CURRENT)}
        versions = {CHANGELOG: recorded.changelog, CURRENT: recorded.current}
        if all(version is None or _has_commit(folders[kind], version) for kind, version in versions.items()):
            continue
        try:
            check_held(table, 0, recorded, *(open_table(folder) for folder in folders.values()))
        except LakeTableLost as found:
            lost[table] = found
    return lost


def _has_commit(folder: str, version: int) -> bool:
    """Whether Delta's log still has the file of this version, which a table does not keep for ever."""
    return open_storage(folder).find(f"_delta_log/{version:020d}.json") is not None


def _lost(table: TableId, cut: int, kind: str, version: int, held: DeltaTable | None) -> LakeTableLost:
    found = "there is none" if held is None else f"it has version {held.version()}"
    return LakeTableLost(
        f"opening the table's {kind} in the lake",
        f"{found}, and version {version} was written: the folder was lost, or an older copy of it was put back",
        data="Nothing is written to the table; the landing has all of its rows; other tables go on",
        remedy="It is given all of its rows from the landing again, by itself; where the landing has lost them, the"
        f" next stop says so: then run: {table.resync}",
        **table.where(cut),
    )
