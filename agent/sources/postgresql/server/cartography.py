"""What exists in a database: tables, columns, keys, storage, estimated rows and size.

Comes in: a session. Goes out: a card for each table. Five set-based statements whatever the number of tables;
no table is opened and none is locked, so sizes are as of the server's last VACUUM or ANALYZE.

Partitions stand for nothing of their own: their rows and sizes are those of the partitioned table. A table whose
changes are not logged is listed as denied, since it exists and can't be synced.
"""

import time
from collections import defaultdict
from collections.abc import Iterator

from menura.v1 import catalog_pb2, config_pb2

from agent.sources.postgresql.config import PostgresqlConfig
from agent.sources.postgresql.server.connection import Connection, Facts, rows
from agent.sources.postgresql.server.definitions import NOT_SYSTEM, one_moment

_OFFERED = f"relkind IN ('r', 'p') AND relpersistence <> 't' AND NOT relispartition AND {NOT_SYSTEM}"
#: a table, or the partitioned table that a partition belongs to in the end; of all that have rows
_ROOTS = """
    WITH RECURSIVE tree (root, oid) AS (
        SELECT oid, oid FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition
        UNION ALL
        SELECT root, inhrelid FROM tree JOIN pg_inherits ON inhparent = tree.oid
        JOIN pg_class ON pg_class.oid = inhrelid AND relispartition
    )
"""
_TABLES = f"""
    {_ROOTS}, holder AS (
        SELECT root, of_class.oid, reltuples, relpages, reltoastrelid, relpersistence, relkind
        FROM tree JOIN pg_class AS of_class ON of_class.oid = tree.oid WHERE relkind <> 'p'
    ), sums AS (
        SELECT root, CASE WHEN bool_and(reltuples >= 0) THEN sum(reltuples)::bigint END AS estimated,
               bool_or(relpersistence = 'u' OR relkind = 'f') AS unlogged
        FROM holder GROUP BY root
    ), sizes AS (
        SELECT root, sum(pages)::bigint * current_setting('block_size')::int AS bytes FROM (
            SELECT root, relpages AS pages FROM holder
            UNION ALL SELECT root, toast.relpages FROM holder JOIN pg_class AS toast ON toast.oid = holder.reltoastrelid
            UNION ALL SELECT root, of_index.relpages FROM holder JOIN pg_index ON indrelid = holder.oid
                JOIN pg_class AS of_index ON of_index.oid = indexrelid
        ) AS parts GROUP BY root
    )
    SELECT one.oid, nspname::text, relname::text,
           CASE WHEN unlogged THEN 'unlogged' WHEN relkind = 'p' THEN 'partitioned' ELSE coalesce(amname, '') END::text,
           CASE WHEN relkind = 'p' THEN coalesce(estimated, 0) ELSE estimated END, coalesce(bytes, 0),
           coalesce(unlogged, false)
    FROM pg_class AS one JOIN pg_namespace AS of_schema ON of_schema.oid = relnamespace
    LEFT JOIN pg_am ON pg_am.oid = relam LEFT JOIN sums ON sums.root = one.oid LEFT JOIN sizes ON sizes.root = one.oid
    WHERE {_OFFERED} ORDER BY nspname, relname
"""  # noqa: S608
_COLUMNS = f"""
    SELECT attrelid, attname::text, format_type(atttypid, atttypmod), NOT attnotnull, attgenerated <> ''
    FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE attnum > 0 AND NOT attisdropped AND {_OFFERED} ORDER BY attrelid, attnum
"""  # noqa: S608
_KEYS = f"""
    WITH offered AS (
        SELECT pg_class.oid FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE {_OFFERED}
    )
    SELECT indrelid, of_index.relname::text, indisunique,
           (SELECT json_agg(attname ORDER BY place)
            FROM unnest(indkey::int2[]) WITH ORDINALITY AS part (number, place)
            JOIN pg_attribute ON attrelid = indrelid AND attnum = number WHERE place <= indnkeyatts)
    FROM pg_index JOIN pg_class AS of_index ON of_index.oid = indexrelid
    WHERE indrelid IN (SELECT oid FROM offered) AND indisvalid ORDER BY indrelid, NOT indisprimary, of_index.relname
"""  # noqa: S608
#: of a partitioned parent there is one for each partition too, which has the first one as its parent
_FOREIGN_KEYS = f"""
    WITH offered AS (
        SELECT pg_class.oid FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE {_OFFERED}
    )
    SELECT conrelid, conname::text, of_schema.nspname::text, parent.relname::text,
           (SELECT json_agg(attname ORDER BY place) FROM unnest(conkey) WITH ORDINALITY AS part (number, place)
            JOIN pg_attribute ON attrelid = conrelid AND attnum = number),
           (SELECT json_agg(attname ORDER BY place) FROM unnest(confkey) WITH ORDINALITY AS part (number, place)
            JOIN pg_attribute ON attrelid = confrelid AND attnum = number)
    FROM pg_constraint JOIN pg_class AS parent ON parent.oid = confrelid
    JOIN pg_namespace AS of_schema ON of_schema.oid = parent.relnamespace
    WHERE contype = 'f' AND conparentid = 0 AND conrelid IN (SELECT oid FROM offered) ORDER BY conrelid, conname
"""  # noqa: S608
_COLLATION = "SELECT datcollate::text FROM pg_database WHERE datname = current_database()"
_NAMES = f"""
    SELECT count(*), coalesce(sum(hashtextextended(concat_ws('.', nspname, relname, relpersistence), 0)), 0)::text
    FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE {_OFFERED}
"""  # noqa: S608

#: another one: tables came, went, were renamed, or are logged from now on
NamesDigest = tuple[int, str]


def cards(connection: Connection, source: PostgresqlConfig) -> Iterator[catalog_pb2.TableCard]:
    """Of all tables; statements inside `server_errors`."""
    with one_moment(connection):
        tables = rows(connection, _TABLES)
        columns: dict[int, list[catalog_pb2.ColumnCard]] = defaultdict(list)
        for table, name, column_type, nullable, generated in rows(connection, _COLUMNS):
            columns[table].append(
                catalog_pb2.ColumnCard(name=name, column_type=column_type, nullable=nullable, generated=generated)
            )
        keys: dict[int, list[catalog_pb2.KeyCard]] = defaultdict(list)
        for table, name, unique, names in rows(connection, _KEYS):
            keys[table].append(catalog_pb2.KeyCard(name=name, unique=unique, columns=names or ()))
        foreign_keys: dict[int, list[catalog_pb2.ForeignKeyCard]] = defaultdict(list)
        for child, name, above, parent, names, parent_names in rows(connection, _FOREIGN_KEYS):
            parent_name = config_pb2.TableName(database=above, table=parent)
            foreign_keys[child].append(
                catalog_pb2.ForeignKeyCard(name=name, columns=names, parent=parent_name, parent_columns=parent_names)
            )
        ((collation,),) = rows(connection, _COLLATION)
    for oid, schema, table, engine, estimated_rows, size_bytes, is_unlogged in tables:
        verdict = source.filter.verdict(schema, table)
        card = catalog_pb2.TableCard(
            table=config_pb2.TableName(database=schema, table=table),
            engine=engine,
            estimated_rows=estimated_rows,
            size_bytes=size_bytes,
            collation=collation or "",
            columns=columns.pop(oid, []),
            keys=keys.pop(oid, []),
            foreign_keys=foreign_keys.pop(oid, []),
            denied=is_unlogged or not verdict.allowed,
        )
        for column in card.columns:
            column.ignored = verdict.ignores(column.name)
        yield card


def names_digest(connection: Connection) -> NamesDigest:
    """Of the names of all tables, which costs little; inside `server_errors`."""
    ((count, digest),) = rows(connection, _NAMES)
    return count, digest


def head(source: PostgresqlConfig, facts: Facts) -> catalog_pb2.Cartography:
    return catalog_pb2.Cartography(
        source=source.name,
        flavor="postgresql",
        server_version=facts.version_text,
        server_identity=facts.system,
        read_at_us=time.time_ns() // 1000,
    )
