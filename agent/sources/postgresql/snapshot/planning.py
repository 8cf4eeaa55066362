"""The plan of a dump as it travels: its ranges, and what an operator should know before it runs.

Comes in: an order, and the key that its table is read by. Goes out: a `DumpPlan` with bounds as `statements` has them.
"""

from menura.v1 import snapshot_pb2

from agent.sources.postgresql.config import PostgresqlConfig
from agent.sources.postgresql.server.connection import connect, server_errors, setting_bytes
from agent.sources.postgresql.server.definitions import TableDefinition
from agent.sources.postgresql.snapshot.keys import Key
from agent.sources.postgresql.snapshot.ranges import plan
from agent.sources.postgresql.snapshot.session import Session

DOING = "planning a dump"
#: of the WAL that a server keeps for the slot: a table that is larger than this part of it is warned of
_WARNED_PART = 0.5


def plan_message(
    session: Session,
    config: PostgresqlConfig,
    order: snapshot_pb2.DumpOrder,
    definition: TableDefinition,
    key: Key | None,
    why: str,
    most_ranges: int,
) -> snapshot_pb2.DumpPlan:
    """`why`: why it is read in one snapshot although it has a key; '' where it has none, or goes by it. In a
    transaction, which a failure is left in; raises a `SourceError`."""
    with session.errors(DOING):
        made = plan(session, definition, key, most_ranges)
    warning = ""
    if key is None:
        warning = "; ".join(filter(None, (why, _retention_warning(config, made.estimated_bytes))))
    return snapshot_pb2.DumpPlan(
        dump=order.dump,
        key=key.names if key is not None else (),
        ranges=[snapshot_pb2.DumpRange(number=part.number, lower=part.lower, upper=part.upper) for part in made.ranges],
        estimated_rows=made.estimated_rows,
        estimated_bytes=made.estimated_bytes,
        warning=warning,
        least_key=made.ends[0] if made.ends is not None else None,
        greatest_key=made.ends[1] if made.ends is not None else None,
    )


def _retention_warning(config: PostgresqlConfig, size_bytes: int | None) -> str:
    """Until the whole table is in the lake, the slot keeps all WAL from its snapshot on."""
    server = config.replication
    doing = "asking how much WAL the server keeps"
    connection = connect(server, config.name)
    try:
        with server_errors(doing, server, config.name):
            kept_bytes = setting_bytes(connection, "max_slot_wal_keep_size")
    finally:
        connection.close()
    if kept_bytes is None or size_bytes is None or size_bytes <= kept_bytes * _WARNED_PART:
        return ""
    return (
        f"it is read in one snapshot, for which the server keeps WAL, at most {kept_bytes >> 20} MiB"
        " (max_slot_wal_keep_size): if it writes more meanwhile the slot is lost, and syncs begin anew"
    )
