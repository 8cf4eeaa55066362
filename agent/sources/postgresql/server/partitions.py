"""Which tables hold the rows of partitioned ones, for the host's policy: it may deny one of them.

Comes in: a session. Goes out, to the filter's veto: all partitions, by the name of the table that they are published
as. Only where a policy keeps something back. Durable: nothing; each look tells it again.
"""

from collections import defaultdict

from agent.filter import Filter
from agent.sources.postgresql.server.connection import Connection, rows
from agent.table_positions import Table

_PARTITIONS = """
    WITH RECURSIVE tree (root, oid) AS (
        SELECT oid, oid FROM pg_class WHERE relkind = 'p' AND NOT relispartition
        UNION ALL SELECT root, inhrelid FROM tree JOIN pg_inherits ON inhparent = tree.oid
    )
    SELECT root_schema.nspname::text, root.relname::text, part_schema.nspname::text, part.relname::text
    FROM tree JOIN pg_class AS root ON root.oid = tree.root
    JOIN pg_namespace AS root_schema ON root_schema.oid = root.relnamespace
    JOIN pg_class AS part ON part.oid = tree.oid JOIN pg_namespace AS part_schema ON part_schema.oid = part.relnamespace
    WHERE tree.oid <> tree.root
"""
_ABOVE = """
    SELECT nspname::text, relname::text FROM pg_partition_ancestors(CAST(:oid AS oid)) AS above
    JOIN pg_class ON pg_class.oid = above.relid JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE above.relid <> CAST(:oid AS oid)
"""


def tell_partitions(connection: Connection, filter_: Filter) -> frozenset[Table]:
    """Partitioned tables that stay now; inside `server_errors`."""
    if not filter_.veto.keeps_back:
        return frozenset()
    parts: dict[Table, set[Table]] = defaultdict(set)
    for schema, table, part_schema, part in rows(connection, _PARTITIONS):
        parts[schema, table].add((part_schema, part))
    filter_.veto.parts_are(parts)
    return frozenset(table for table in parts if not filter_.veto.ruling(*table).leaves)


def above(connection: Connection, oid: int) -> list[Table]:
    """The tables that the one of this number is a partition of; none: it is no partition. Inside `server_errors`."""
    return [(str(schema), str(table)) for schema, table in rows(connection, _ABOVE, oid=oid)]
