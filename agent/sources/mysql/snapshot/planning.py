"""The plan of a dump as it travels: its ranges, and whether the log is kept for as long as it needs it.

Comes in: an order and the key that its table is read by. Goes out: a `DumpPlan` with bounds as `statements` has them.
"""

from contextlib import closing

from menura.v1 import snapshot_pb2

from agent.runtime.state import SourceState
from agent.snapshot.throttle import Limits
from agent.sources.mysql.server.connection import connect, server_errors
from agent.sources.mysql.snapshot.access import Access
from agent.sources.mysql.snapshot.keys import Key
from agent.sources.mysql.snapshot.log_retention import (
    lag_warning,
    needed_seconds,
    read_log_retention,
    unchunked_warning,
)
from agent.sources.mysql.snapshot.ranges import plan

DOING = "planning a dump"


def plan_message(
    access: Access,
    order: snapshot_pb2.DumpOrder,
    key: Key | None,
    partial: str,
    most_ranges: int,
    state: SourceState,
) -> snapshot_pb2.DumpPlan:
    """`partial`: why rows of the log that lack columns forbid a key; '' where they don't. Raises a `SourceError`."""
    config = access.config
    table = (order.table.database, order.table.table)
    with server_errors(DOING, config.client, config.name, "SELECT"):
        made = plan(access.connection, access.facts, table, key, most_ranges)
    with closing(connect(config.binlog, config.name)) as connection, server_errors(DOING, config.binlog, config.name):
        retention = read_log_retention(connection)
    needed = None
    if key is None:
        limits = Limits(order.limits.workers, order.limits.rows_per_second, order.limits.bytes_per_second)
        needed = needed_seconds(made.estimated_rows, made.estimated_bytes, config.dump, limits)
        warning = unchunked_warning(retention, needed)
        if partial:
            why = f"read in one snapshot, since {partial}: with FULL it goes by chunks"
            warning = "; ".join(filter(None, (why, warning)))
    else:
        warning = lag_warning(retention, state.status().lag_us / 1_000_000)  # 0: not known
    return snapshot_pb2.DumpPlan(
        dump=order.dump,
        key=key.names if key is not None else (),
        ranges=[snapshot_pb2.DumpRange(number=part.number, lower=part.lower, upper=part.upper) for part in made.ranges],
        estimated_rows=made.estimated_rows,
        estimated_bytes=made.estimated_bytes,
        runway_seconds=retention.seconds,
        needed_seconds=needed,
        warning=warning,
        least_key=made.ends[0] if made.ends is not None else None,
        greatest_key=made.ends[1] if made.ends is not None else None,
    )
