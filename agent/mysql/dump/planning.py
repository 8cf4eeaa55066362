"""The plan of a dump as it travels.

Comes in: a table and its key. Goes out: a `DumpPlan` with bounds as `statements` has them.
"""

from menura.v1 import mysql_client_pb2

from agent.mysql.connection import server_errors
from agent.mysql.dump.access import Access
from agent.mysql.dump.keys import Key
from agent.mysql.dump.ranges import plan
from agent.mysql.progress import Table


def plan_message(access: Access, dump: str, table: Table, key: Key | None) -> mysql_client_pb2.DumpPlan:
    """Raises a `SourceError`, and `DumpRunwayShort`."""
    with server_errors("planning a dump", access.config.client, access.config.name, "SELECT"):
        made = plan(access.connection, access.facts, table, key)
    return mysql_client_pb2.DumpPlan(
        dump=dump,
        key=key.names if key is not None else (),
        ranges=[
            mysql_client_pb2.DumpRange(number=part.number, lower=part.lower, upper=part.upper) for part in made.ranges
        ],
        estimated_rows=made.estimated_rows,
        estimated_bytes=made.estimated_bytes,
    )
