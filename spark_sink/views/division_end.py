"""The end of a divided turn of a view: one commit of its changelog, of what all ranges have written.

Comes in: the division, and what came of each range. Goes out: the view's version, as of a turn that is one task. The
commit fails where another commit of the view has come between, and then the turn is done again. Groups' states are
added up here: they are as many as the view has groups, times the ranges that have them.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from spark_sink.lake.tail import Waiting
from spark_sink.lake.uncommitted_files import read_files, remove_files
from spark_sink.landed.lake_schema import format_type
from spark_sink.views import queries, whole
from spark_sink.views.division import Division
from spark_sink.views.engine import engine
from spark_sink.views.maintain import OpenView, ViewVersion, ViewWork, commit_differences, open_view, version_of
from spark_sink.views.range_task import Part
from spark_sink.views.view_table import Reached
from spark_sink.work import CHANGELOG, CURRENT

logger = logging.getLogger("menura.sink")


def end_division(lake: str, work: ViewWork, division: Division, parts: Sequence[Part], waiting: Waiting) -> ViewVersion:
    """`parts`: in the order of the ranges. Raises as `follow` does."""
    view = open_view(lake, work, division.versions)
    if view.plan.is_aggregate:
        reached = _add_up(view, division, parts)
        count = reached.gsn - division.after.gsn
    else:
        count = sum(part.changes for part in parts)
        ends = [place * division.stride + part.changes for place, part in enumerate(parts) if part.changes]
        reached = replace(division.after, gsn=division.after.gsn + max(ends, default=1))
        view.table.commit_files([file for part in parts for file in part.logged], reached, division.log_transactions)
        if count or division.is_first:
            files = [file for part in parts for file in part.current]
            view.table.put_files(files, reached, division.current_transactions)
        else:
            _remove(view.table.folder(CURRENT), division.prefix)
    return version_of(view.table, reached, count, waiting, division.opened, division.whole)


def _add_up(view: OpenView, division: Division, parts: Sequence[Part]) -> Reached:
    plan, folder = view.plan, view.table.folder(CHANGELOG)
    schema = pa.schema([pa.field(name, format_type(type_)) for name, type_ in queries.state_types(plan)])
    states = [file for part in parts for file in part.states]
    with engine() as sql:
        sql.put("_states", pa.RecordBatchReader.from_batches(schema, read_files(folder, states, schema)))
        sql.keep("_new", queries.added_query(plan, "_states"))
        whole.keep_differences_from(sql, view.shape, view.table)
        count = commit_differences(
            sql, view.table, view.shape, division.after, is_small=False, more=division.log_transactions
        )
    _remove(folder, division.states_prefix)
    return replace(division.after, gsn=division.after.gsn + max(1, count))


def _remove(folder: str, prefix: str) -> None:
    """Files of which nothing more is wanted; if they stay, the next division removes them."""
    try:
        remove_files(folder, lambda name: name.startswith(prefix))
    except OSError as failed:
        logger.warning("files of a view's division not removed error=%s", type(failed).__name__)
