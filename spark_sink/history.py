"""For users: every version that a table's rows have had, as a slowly changing dimension of type 2.

Comes in: a table's changelog, and its dumps' and repairs' ends from LAKE/_menura/events. Goes out: a row for each
version, with `_menura_valid_from`, `_menura_valid_to` (null: it is valid now) and `_menura_is_current`, as Arrow, as a
Spark DataFrame or as a view. Nothing is written: one statement of SQL, in words that delta-rs's engine and Spark share,
is the definition.

A version begins with an insert, an update's postimage, or a row of a dump or a repair that is not what the lake had. It
ends with the next version of its key, a delete, an update's preimage, a removal of all rows, or a dump's or a repair's
end that has not seen it. All this goes by `_gsn`, of which versions of a key never share one; the times are those of
the source's commits, and of a dump's row when it was read. Rows are told apart by the key that the table has now. A
value that a change did not carry is null here and named in `_absent`. What a changelog does not keep is not here.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable
from menura.change_batch import ABSENT, CHANGE_TYPE, COMMIT_TIMESTAMP_US, GSN, POSITION, TRANSACTION_ID, source_column
from menura.naming import lake_column

from spark_sink.errors import HistoryImpossible
from spark_sink.lake.delta_table import open_table, quoted, read_layout, scan, schema_of, text
from spark_sink.lake.leaves import Incomparable, kinds_of, range_condition
from spark_sink.lake.logged_changes import TRUNCATE
from spark_sink.lake.records import Records
from spark_sink.lake.table_folders import table_folder
from spark_sink.reading import opened
from spark_sink.work import CHANGELOG, TableId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VALID_FROM, VALID_TO, IS_CURRENT = "_menura_valid_from", "_menura_valid_to", "_menura_is_current"
#: the number from which on a version is no more; `_gsn` is its first
VALID_TO_GSN = "_menura_valid_to_gsn"
_INSTANT = pa.timestamp("us", "UTC")
#: of dumps and repairs: the statement has each of them, and engines take seconds to plan a thousand
MOST_ENDS = 200


#: of a removal that takes rows of any key
_ANY = "TRUE"


@dataclass(frozen=True, slots=True)
class Removal:
    """What took rows away at once: those that were last seen below a number and fulfil a condition on their key."""

    gsn: int
    at_us: int
    before_gsn: int
    condition: str = _ANY


@dataclass(frozen=True, slots=True)
class Removals:
    """Of a table, in order."""

    of_all: Sequence[Removal]
    #: ends of dumps and repairs
    of_unseen: Sequence[Removal]
    #: up to which number only what is left is asked for, not in which versions it was before
    above_gsn: int = 0


def history(lake: str, table: TableId) -> pa.Table:
    """All versions, by key and number. Raises `TableNotInLake`, `HistoryImpossible`."""
    changelog = opened(lake, table, CHANGELOG)
    removals = _removals(lake, table, changelog)
    found = scan(changelog, _statement(table, changelog, removals, "t", quoted, "to_timestamp_micros")).read_all()
    for name in (VALID_FROM, VALID_TO):
        found = found.set_column(found.column_names.index(name), name, found[name].cast(_INSTANT))
    return found


def ends_above(lake: str, table: TableId, changelog: DeltaTable, gsn: int) -> Removals:
    """Of a table as its changelog is opened: ends of dumps and repairs, as they matter to versions that end with a
    higher number. Raises `HistoryImpossible`.
    """
    return Removals((), _of_unseen(lake, table, changelog, gsn), gsn)


def versions_ended(
    table: TableId, changelog: DeltaTable, ends: Removals, from_gsn: int = 0
) -> Callable[[Removal], pa.RecordBatchReader]:
    """Gives the versions that one of the ends of `ends_above` has ended, as `history` has them; of keys that have
    changes from `from_gsn` on, by these. Raises `HistoryImpossible`, the function does not.

    Only changes below the end's begin are sorted, of keys that have no later ones up to the end.
    """
    removals = replace(ends, of_all=emptied(changelog, from_gsn))
    check_keys(table, changelog, from_gsn)
    schema, key = schema_of(changelog), _key(changelog)
    gsn, later = quoted(GSN), quoted("_menura_later")
    same = " AND ".join(f"{later}.{quoted(name)} = t.{quoted(name)}" for name in key)

    def ended_by(end: Removal) -> pa.RecordBatchReader:
        seen = (
            f"SELECT 1 FROM t AS {later} WHERE {later}.{gsn} >= {end.before_gsn} AND {later}.{gsn} <= {end.gsn}"  # noqa: S608
            f" AND {same}"
        )
        unseen = (
            f"(SELECT * FROM t WHERE {gsn} >= {from_gsn} AND {gsn} < {end.before_gsn}"  # noqa: S608  (numbers)
            f" AND NOT EXISTS ({seen}))"
        )
        versions_of = versions(unseen, schema.names, key, removals, quoted, "to_timestamp_micros")
        query = f"SELECT * FROM ({versions_of}) WHERE {quoted(VALID_TO_GSN)} = {end.gsn}"  # noqa: S608  (a number)
        return scan(changelog, query)

    return ended_by


def history_frame(session: "SparkSession", lake: str, table: TableId) -> "DataFrame":
    """The same as a Spark DataFrame."""
    changelog = opened(lake, table, CHANGELOG)
    source = f"delta.{_ticked(f'{table_folder(lake, table)}/{CHANGELOG}')} VERSION AS OF {changelog.version()}"
    removals = _removals(lake, table, changelog)
    return session.sql(_statement(table, changelog, removals, source, _ticked, "timestamp_micros"))


def create_history_view(session: "SparkSession", lake: str, table: TableId, name: str) -> None:
    """A view for SQL of the session, with the versions as they are at this moment; again for a later one."""
    history_frame(session, lake, table).createOrReplaceTempView(name)


def _statement(
    table: TableId,
    changelog: DeltaTable,
    removals: Removals,
    source: str,
    quote: Callable[[str], str],
    instant: str,
) -> str:
    check_keys(table, changelog)
    return versions(source, schema_of(changelog).names, _key(changelog), removals, quote, instant)


def _key(changelog: DeltaTable) -> list[str]:
    names = {name.lower(): name for name in schema_of(changelog).names}
    return [names[name.lower()] for name in read_layout(changelog).key]


def check_keys(table: TableId, changelog: DeltaTable, from_gsn: int = 0) -> None:
    """That each change from this number on has a key. Raises `HistoryImpossible`."""
    key = _key(changelog)
    missing = " OR ".join(f"{quoted(name)} IS NULL" for name in key)
    is_row = f"{quoted(CHANGE_TYPE)} <> '{TRUNCATE}' AND {quoted(GSN)} >= {from_gsn}"
    query = f"SELECT {quoted(GSN)} FROM t WHERE {is_row} AND ({missing}) LIMIT 1"  # noqa: S608  (quoted names)
    if not key or scan(changelog, query).read_all().num_rows:
        raise keyless(table)


def keyless(table: TableId) -> HistoryImpossible:
    return _impossible(table, "has no primary key that each of its changes has, so nothing tells its rows apart")


def _impossible(table: TableId, why: str) -> HistoryImpossible:
    return HistoryImpossible(
        "reading a table's history",
        f"{table} {why}",
        remedy="Read its changelog, which has each change: spark_sink.reading.changelog",
    )


def versions(
    source: str,
    names: Sequence[str],
    key: Sequence[str],
    removals: Removals,
    quote: Callable[[str], str],
    instant: str,
) -> str:
    """The statement. `quote` and `instant`: how the engine writes names, and a time."""
    facts = (CHANGE_TYPE, TRANSACTION_ID, COMMIT_TIMESTAMP_US, POSITION, GSN)
    columns = [quote(name) for name in names if name not in facts]
    gsn, kind, of_key = quote(GSN), quote(CHANGE_TYPE), ", ".join(map(quote, key))
    values = [column for column in columns if column != quote(ABSENT)]
    same = " AND ".join(f"({column} IS NOT DISTINCT FROM (LAG({column}) OVER changes))" for column in values)
    emptied_gsn = _next(gsn, [(each.gsn, each.gsn) for each in removals.of_all])
    emptied_us = _next(gsn, [(each.gsn, each.at_us) for each in removals.of_all])
    ends = [replace(each, condition=_requoted(each.condition, key, quote)) for each in removals.of_unseen]
    between = "".join(
        f" OR ((LAG({gsn}) OVER changes) < {each.before_gsn} AND {gsn} > {each.gsn} AND ({each.condition}))"
        for each in ends
        if each.gsn > removals.above_gsn
    )
    taken = "".join(
        f" WHEN {gsn} < {each.gsn} AND _menura_seen_gsn < {each.before_gsn} AND ({each.condition}) THEN {each.gsn}"
        for each in ends
    )
    times = "".join(f" WHEN {each.gsn} THEN {each.at_us}" for each in ends)
    listed = ", ".join(columns)
    return f"""
WITH changes AS (
  SELECT {listed}, {gsn}, {quote(COMMIT_TIMESTAMP_US)} AS _menura_at_us,
    {kind} IN ('insert', 'update_postimage', 'snapshot') AS _menura_puts, {kind} = 'snapshot' AS _menura_is_read,
    CASE {kind} WHEN 'snapshot' THEN 2 WHEN 'insert' THEN 1 WHEN 'update_postimage' THEN 1 ELSE 0 END AS _menura_place,
    {emptied_gsn} AS _menura_emptied_gsn, {emptied_us} AS _menura_emptied_us
  FROM {source} WHERE {kind} <> '{TRUNCATE}'
), marked AS (
  SELECT *, NOT (_menura_is_read AND COALESCE(LAG(_menura_puts) OVER changes, FALSE) AND {same}
    AND NOT (COALESCE((LAG(_menura_emptied_gsn) OVER changes) < {gsn}, FALSE){between})) AS _menura_is_new FROM changes
  WINDOW changes AS (PARTITION BY {of_key} ORDER BY {gsn}, _menura_place)
), numbered AS (
  SELECT *, SUM(CASE WHEN _menura_is_new THEN 1 ELSE 0 END) OVER (PARTITION BY {of_key} ORDER BY {gsn}, _menura_place
    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS _menura_number FROM marked
), seen AS (
  SELECT *, MAX({gsn}) OVER (PARTITION BY {of_key}, _menura_number) AS _menura_seen_gsn FROM numbered
), ended AS (
  SELECT *, LEAD({gsn}) OVER following AS _menura_next_gsn, LEAD(_menura_at_us) OVER following AS _menura_next_us,
    CASE{taken or " WHEN FALSE THEN 0"} END AS _menura_taken_gsn FROM seen WHERE _menura_is_new
  WINDOW following AS (PARTITION BY {of_key} ORDER BY {gsn}, _menura_place)
), timed AS (
  SELECT *, LEAST(_menura_next_gsn, _menura_taken_gsn, _menura_emptied_gsn) AS {quote(VALID_TO_GSN)}
  FROM ended WHERE _menura_puts
)
SELECT {listed}, {gsn}, {quote(VALID_TO_GSN)}, {instant}(_menura_at_us) AS {quote(VALID_FROM)},
  {instant}(CASE {quote(VALID_TO_GSN)} WHEN _menura_next_gsn THEN _menura_next_us
    WHEN _menura_emptied_gsn THEN _menura_emptied_us{times} END) AS {quote(VALID_TO)},
  {quote(VALID_TO_GSN)} IS NULL AS {quote(IS_CURRENT)}
FROM timed ORDER BY {of_key}, {gsn}"""  # noqa: S608  (quoted names, numbers)


def _next(gsn: str, removals: Sequence[tuple[int, int]]) -> str:
    """SQL for what the first of these numbers above a row's stands for; a tree, since engines fail at deep chains.

    >>> _next("n", [(3, 30), (5, 50), (9, 90)])
    'CASE WHEN n < 9 THEN CASE WHEN n < 3 THEN 30 ELSE CASE WHEN n < 5 THEN 50 ELSE 90 END END END'
    """
    if not removals:
        return "CAST(NULL AS BIGINT)"
    return f"CASE WHEN {gsn} < {removals[-1][0]} THEN {_among(gsn, removals)} END"


def _among(gsn: str, removals: Sequence[tuple[int, int]]) -> str:
    """The same below the last of them."""
    if len(removals) == 1:
        return str(removals[0][1])
    middle = len(removals) // 2
    lower, upper = removals[:middle], removals[middle:]
    return f"CASE WHEN {gsn} < {lower[-1][0]} THEN {_among(gsn, lower)} ELSE {_among(gsn, upper)} END"


def _requoted(condition: str, key: Sequence[str], quote: Callable[[str], str]) -> str:
    for name in key:
        condition = condition.replace(quoted(name), quote(name))
    return condition


def _removals(lake: str, table: TableId, changelog: DeltaTable) -> Removals:
    """Raises `HistoryImpossible`."""
    return Removals(emptied(changelog), _of_unseen(lake, table, changelog, 0))


def emptied(changelog: DeltaTable, from_gsn: int = 0) -> Sequence[Removal]:
    """Removals of all rows, in order."""
    query = (
        f"SELECT {quoted(GSN)} AS gsn, {quoted(COMMIT_TIMESTAMP_US)} AS at_us FROM t"  # noqa: S608  (constants)
        f" WHERE {quoted(CHANGE_TYPE)} = '{TRUNCATE}' AND {quoted(GSN)} >= {from_gsn}"
    )
    rows = scan(changelog, query).read_all().sort_by("gsn").to_pylist()
    return [Removal(row["gsn"], row["at_us"], row["gsn"]) for row in rows]


def _of_unseen(lake: str, table: TableId, changelog: DeltaTable, above_gsn: int) -> Sequence[Removal]:
    """Raises `HistoryImpossible`, where those above the number are too many."""
    events = open_table(Records(lake).events_folder)
    if events is None:
        return ()
    found: dict[int, Removal] = {}
    names = zip(("tenant", "source", "database", "table"), _parts(table), strict=True)
    of_table = " AND ".join(f"{quoted(name)} = {text(value)}" for name, value in names)
    query = f"SELECT * FROM t WHERE {of_table} AND kind IN ('DUMPED', 'REPAIRED')"  # noqa: S608  (quoted)
    for row in scan(events, query).read_all().to_pylist():
        gsn, at_us = row[GSN], row[COMMIT_TIMESTAMP_US]
        if row["removes_rows_before_gsn"]:
            found[gsn] = Removal(gsn, at_us, row["removes_rows_before_gsn"])
        elif row.get("repaired"):
            repaired = json.loads(row["repaired"])
            of_key = [lake_column(source_column(name)) for name in repaired["key"]]
            ranges = [(tuple(each["above"]), tuple(each["up_to"])) for each in repaired["ranges"]]
            try:
                kinds = kinds_of(repaired.get("kinds", ()), len(of_key))
                condition = range_condition(of_key, kinds, ranges, schema_of(changelog))
            except Incomparable as why:
                raise _impossible(table, f"has had a repair of keys that it has no more: {why}") from why
            found[gsn] = Removal(gsn, at_us, repaired["before_gsn"], condition)
    if sum(gsn > above_gsn for gsn in found) > MOST_ENDS:
        since = f" since the number {above_gsn}" if above_gsn else ""
        raise _impossible(table, f"has had more than {MOST_ENDS} dumps and repairs{since}")
    return _deciding(found.values(), above_gsn)


def _deciding(ends: Collection[Removal], gsn: int) -> Sequence[Removal]:
    """In order, without those up to a number of which a later dump up to it would take the same rows."""
    dumps = [each.before_gsn for each in ends if each.gsn <= gsn and each.condition == _ANY]
    before_gsn = max(dumps, default=0)
    found = [each for each in ends if each.gsn > gsn or each.before_gsn >= before_gsn]
    return sorted(found, key=lambda each: each.gsn)


def _parts(table: TableId) -> tuple[str, ...]:
    return table.tenant, table.source, table.database, table.table


def _ticked(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
