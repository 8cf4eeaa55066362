"""One range of a divided turn of a view, as a task of its own.

Comes in: the division, and which of its ranges. Goes out: what the view's rows of that range differ in from those that
it has, as files in its changelog's folder which no commit names yet, and the range's rows likewise in its current
state's. Of groups their states over the range's rows, which are added up later. A task that is done again writes other
files, and those of one attempt alone are told. The driving table is read by the range; of joined tables what lies
between the least and the greatest key that its rows look up.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from menura.change_batch import CHANGE_TYPE, GSN, ChangeType
from menura.views.plan import Plan
from menura.views.terms import quoted

from spark_sink.lake.key_bounds import key_bounds
from spark_sink.lake.uncommitted_files import DataFile, FilesWriter, statistics_columns
from spark_sink.landed.lake_schema import format_type
from spark_sink.views import queries, whole
from spark_sink.views.division import Division
from spark_sink.views.engine import Engine, engine
from spark_sink.views.inputs import reader_of
from spark_sink.views.key_ranges import KeyRange
from spark_sink.views.maintain import OpenView, ViewWork, open_view
from spark_sink.views.view_table import ViewShape, logged
from spark_sink.work import CHANGELOG, CURRENT

#: changes that leave a row
_PUTS = pa.array([ChangeType.insert.name, ChangeType.update_postimage.name])


@dataclass(frozen=True, slots=True)
class Part:
    """What came of a range."""

    changes: int = 0
    #: changes, in the changelog's folder
    logged: tuple[DataFile, ...] = ()
    #: rows, in the current state's folder
    current: tuple[DataFile, ...] = ()
    #: of groups, in the changelog's folder
    states: tuple[DataFile, ...] = ()


def compute_range(lake: str, work: ViewWork, division: Division, place: int) -> Part:
    """Raises as `follow` does."""
    view = open_view(lake, work, division.versions)
    keys = division.ranges[place]
    with engine() as sql:
        _put_rows(sql, view, keys)
        if view.plan.is_aggregate:
            return Part(states=_states(sql, view, division))
        whole.keep_rows(sql, view.plan)
        above_gsn = division.after.gsn + place * division.stride
        return _changes(sql, view, division, keys, above_gsn)


def _put_rows(sql: Engine, view: OpenView, keys: KeyRange) -> None:
    """Tables by their aliases, of which those that look others up are kept."""
    plan, driving = view.plan, view.inputs[view.plan.driving.name]
    field = driving.schema.field(driving.key[keys.place])
    rows = driving.all_rows(plan.driving.columns, keys.skipping(field), keys.only(field))
    _put(sql, plan, plan.driving.alias, rows)
    for each in plan.inputs[1:]:
        found = view.inputs[each.name]
        term = next(term for term in each.terms if term.parent_column)
        held = found.schema.field(term.key)
        ends = sql.table(_ends_query(each.parent, term.parent_column, term.key)).cast(pa.schema([held]))
        if ends[term.key].null_count:  # no row looks another one up
            sql.put(each.alias, found.all_rows(each.columns, "FALSE", lambda rows: rows.slice(0, 0)))
            continue
        skipping = key_bounds(ends, [term.key]).condition({name.name: name for name in found.schema})
        _put(sql, plan, each.alias, found.all_rows(each.columns, skipping))


def _ends_query(parent: str, column: str, name: str) -> str:
    """The least and the greatest value of a column of rows that look others up."""
    chosen = [f"SELECT {end}({quoted(column)}) AS {quoted(name)} FROM {quoted(parent)}" for end in ("min", "max")]  # noqa: S608
    return " UNION ALL ".join(chosen)


def _put(sql: Engine, plan: Plan, alias: str, rows: pa.RecordBatchReader) -> None:
    if not plan.children(alias):
        sql.put(alias, rows)
        return
    sql.put("_rows", rows)
    sql.keep(alias, "SELECT * FROM _rows")


def _states(sql: Engine, view: OpenView, division: Division) -> tuple[DataFile, ...]:
    schema = pa.schema([pa.field(name, format_type(type_)) for name, type_ in queries.state_types(view.plan)])
    files = FilesWriter(view.table.folder(CHANGELOG), division.states_prefix)
    for batch in sql.reader(queries.state_query(view.plan, f"({queries.row_query(view.plan)})")):
        files.add(pa.Table.from_batches([batch]).cast(schema))
    return files.end()


def _changes(sql: Engine, view: OpenView, division: Division, keys: KeyRange, above_gsn: int) -> Part:
    """What differs, and the rows that the range has then: those that do not differ keep their numbers."""
    names, table, shape = view.shape.columns.names, view.table, view.shape
    if division.is_first:
        query = queries.insert_query(names, "_new", above_gsn)
    else:
        held = table.rows()
        field = held.schema.field(shape.key[keys.place])
        sql.put("_rows", reader_of(held, [*names, GSN], keys.skipping(field), keys.only(field)))
        sql.keep("_held", "SELECT * FROM _rows")
        whole.keep_differences(sql, shape, "_held", "_new")
        query = queries.change_query(names, "_differences", above_gsn)
    assert table.changelog is not None
    assert table.current is not None
    changes = FilesWriter(table.folder(CHANGELOG), division.prefix, statistics_columns(table.changelog))
    current = FilesWriter(table.folder(CURRENT), division.prefix, statistics_columns(table.current))
    for rows in _tables(sql.reader(query)):
        found = logged(rows, shape, division.after)
        changes.add(found)
        current.add(_stated(found.filter(pc.is_in(found[CHANGE_TYPE], _PUTS)), shape))
    if not division.is_first:
        for rows in _tables(sql.reader(queries.same_query([*names, GSN], names, shape.key, "_held", "_differences"))):
            current.add(_stated(rows, shape))
    count = sql.number(f"SELECT count(*) FROM {'_new' if division.is_first else '_differences'}")  # noqa: S608  (ours)
    if count >= division.stride:
        raise RuntimeError("a range has more changes than numbers: files say fewer rows than they have")
    return Part(count, changes.end(), current.end())


def _stated(rows: pa.Table, shape: ViewShape) -> pa.Table:
    """Rows as the current state has them, from those that have its columns or lack some that are always null."""
    columns = [rows[name] if name in rows.column_names else pa.nulls(len(rows)) for name in shape.current.names]
    return pa.table(columns, shape.current.names).cast(shape.current)


def _tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    return (pa.Table.from_batches([batch]) for batch in batches)
