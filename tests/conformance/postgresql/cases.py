# ruff: noqa: E501  (SQL)
"""What a PostgreSQL is made to log: every type under every setting, and statements of each kind. Only SQL and names."""

from collections.abc import Mapping
from dataclasses import dataclass

from tests.conformance.cases import Setting, Type
from tests.conformance.flows import CATCH_UP, FAILS, RECONNECT, RESTART, Flow
from tests.e2e import postgresql_types
from tests.live_source import OWNER


@dataclass(frozen=True)
class Release:
    """The name is what documents call it."""

    name: str
    version: str


PLATFORMS = (Release("PostgreSQL 15", "15"), Release("PostgreSQL 18", "18"))
_15, _18 = (platform.name for platform in PLATFORMS)
ALL = frozenset({_15, _18})
_ONLY_18 = frozenset({_18})

TYPES = (
    *(Type(kind, kind, values, ALL) for _, kind, values in postgresql_types.COLUMNS),
    Type("generated, stored", "int GENERATED ALWAYS AS (id * 2) STORED", ("DEFAULT",), ALL),
    Type("generated, virtual", "int GENERATED ALWAYS AS (id * 2) VIRTUAL", ("DEFAULT",), _ONLY_18),
)


def _system(setting: str, value: str) -> Setting:
    change, reload = "ALTER SYSTEM {} " + setting, "SELECT pg_reload_conf()"
    return Setting(
        f"{setting}={value}",
        ALL,
        (),
        (change.format("SET") + f" = '{value}'", reload),
        (change.format("RESET"), reload),
    )


_OTHERS = {
    "datestyle": "German",
    "intervalstyle": "iso_8601",
    "timezone": "Asia/Kathmandu",
    "bytea_output": "escape",
    "extra_float_digits": "-2",
    "xmlbinary": "hex",
}
#: the agent's session too begins with them
_ANEW = "SELECT pg_terminate_backend(active_pid, 60000) FROM pg_replication_slots WHERE active"
#: but where it would have a generated column: version 18 refuses to change such a table's rows once it is published
_IDENTITY = "DO $$ DECLARE one oid; BEGIN FOR one IN SELECT oid FROM pg_class WHERE relname ~ '^t[0-9]+$' AND relkind = 'r' AND NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = pg_class.oid AND attgenerated <> '') LOOP EXECUTE format('ALTER TABLE %s REPLICA IDENTITY {}', one::regclass); END LOOP; END $$"
SETTINGS = (
    Setting("the default", ALL),
    Setting("REPLICA IDENTITY FULL", ALL, (), (_IDENTITY.format("FULL"),), (_IDENTITY.format("DEFAULT"),)),
    _system("logical_decoding_work_mem", "64kB"),
    _system("wal_compression", "on"),
    Setting(
        "output settings of the database, not the agent's",
        ALL,
        (),
        (*(f"ALTER DATABASE shop SET {name} = '{value}'" for name, value in _OTHERS.items()), _ANEW),
        (*(f"ALTER DATABASE shop RESET {name}" for name in _OTHERS), _ANEW),
    ),
    Setting("synchronous_commit=off", ALL, ("SET synchronous_commit = off",)),
)


def table_of(table: str, type_: Type) -> str:
    return f"CREATE TABLE {table} (id int PRIMARY KEY, c {type_.definition}, note varchar(20))"


def rows_of(table: str, type_: Type) -> list[str]:
    """Rows with every value and NULL, an update of the value, one beside it, one of the key, a delete."""
    first, last = type_.values[0], type_.values[-1]
    is_generated = first == "DEFAULT"
    values = [*type_.values, *(() if is_generated else ("NULL",))]
    values += [first] * (4 - len(values))
    rows = ", ".join(f"({number}, {value}, 'n{number}')" for number, value in enumerate(values, 1))
    return [
        f"INSERT INTO {table} (id, c, note) VALUES {rows}",
        f"UPDATE {table} SET note = 'changed' WHERE id <> 2",
        *(
            ()
            if is_generated
            else (f"UPDATE {table} SET c = {last} WHERE id = 1", f"UPDATE {table} SET c = NULL WHERE id = 2")
        ),
        f"UPDATE {table} SET id = 100 WHERE id = 3",
        f"DELETE FROM {table} WHERE id = 4",
    ]


PLAIN = "CREATE TABLE {t} (id int PRIMARY KEY, note varchar(40))"
_THREE = "INSERT INTO {t} VALUES (1, 'one'), (2, 'two'), (3, 'three')"
_LARGE = "CREATE TABLE {t} (id int PRIMARY KEY, note varchar(40), big text)"
_OUTSIDE = "ALTER TABLE {t} ALTER big SET STORAGE EXTERNAL"
_LARGE_ROWS = "INSERT INTO {t} SELECT n, 'large', repeat(md5(n::text), 300) FROM generate_series(1, 3) AS n"
_PARTED = (
    "CREATE TABLE {t} (id int PRIMARY KEY, note varchar(40)) PARTITION BY RANGE (id)",
    "CREATE TABLE {t}_low PARTITION OF {t} FOR VALUES FROM (0) TO (3)",
    "CREATE TABLE {t}_high PARTITION OF {t} FOR VALUES FROM (3) TO (1000)",
)
_MOOD = (
    "CREATE TYPE {t}_mood AS ENUM ('sad', 'ok')",
    "CREATE TABLE {t} (id int PRIMARY KEY, note varchar(40), m {t}_mood)",
)
_PAIR = (
    "CREATE TYPE {t}_pair AS (a int, b text)",
    "CREATE TABLE {t} (id int PRIMARY KEY, note varchar(40), p {t}_pair)",
)
_OWNER = f"SET ROLE {OWNER}"
_AT_MOST = "UPDATE {t} SET note = 'behind' WHERE id = 1"


def _flow(name: str, *statements: str, made: tuple[str, ...] = (PLAIN,), platforms: frozenset[str] = ALL) -> Flow:
    return Flow(name, statements, platforms, made=made)


FLOWS = (
    _flow("one statement", _THREE),
    _flow("transaction", "BEGIN", _THREE, "UPDATE {t} SET note = 'x' WHERE id = 2", "DELETE FROM {t} WHERE id = 3", "COMMIT"),
    _flow("transaction that is rolled back", _THREE, "BEGIN", "DELETE FROM {t}", "ROLLBACK", "UPDATE {t} SET note = 'x'"),
    _flow("rollback to a savepoint", "BEGIN", _THREE, "SAVEPOINT s", "DELETE FROM {t}", "ROLLBACK TO s", "UPDATE {t} SET note = 'kept' WHERE id = 1", "COMMIT"),
    _flow("savepoint that is released", "BEGIN", _THREE, "SAVEPOINT s", "UPDATE {t} SET note = 'x'", "RELEASE s", "COMMIT"),
    _flow("exceptions in a block, each a subtransaction", "DO $$ BEGIN FOR n IN 1..200 LOOP BEGIN INSERT INTO {t} VALUES (n % 90, n); EXCEPTION WHEN unique_violation THEN UPDATE {t} SET note = 'again' WHERE id = n % 90; END; END LOOP; END $$"),
    _flow("prepared transaction", "BEGIN", _THREE, "PREPARE TRANSACTION 'p-{t}'", "COMMIT PREPARED 'p-{t}'"),
    _flow("prepared transaction that is rolled back", _THREE, "BEGIN", "DELETE FROM {t}", "PREPARE TRANSACTION 'r-{t}'", "ROLLBACK PREPARED 'r-{t}'"),
    _flow("prepared transaction, committed by another connection", "BEGIN", _THREE, "PREPARE TRANSACTION 'o-{t}'", RECONNECT, "COMMIT PREPARED 'o-{t}'", _AT_MOST),
    _flow("server restarted, with a prepared transaction", "INSERT INTO {t} VALUES (4, 'four')", "BEGIN", _THREE, "PREPARE TRANSACTION 's-{t}'", RESTART, "COMMIT PREPARED 's-{t}'", _AT_MOST),
    _flow("ON CONFLICT", _THREE, "INSERT INTO {t} VALUES (1, 'x'), (4, 'four') ON CONFLICT (id) DO UPDATE SET note = excluded.note", "INSERT INTO {t} VALUES (1, 'y') ON CONFLICT DO NOTHING"),
    _flow("MERGE", _THREE, "MERGE INTO {t} USING (VALUES (1), (2), (9)) AS s (n) ON id = n WHEN MATCHED AND id = 2 THEN DELETE WHEN MATCHED THEN UPDATE SET note = 'merged' WHEN NOT MATCHED THEN INSERT VALUES (n, 'new')"),
    _flow("INSERT ... SELECT", _THREE, "INSERT INTO {t} SELECT id + 10, note FROM {t}"),
    _flow("COPY", "SET ROLE NONE", "COPY {t} (id) FROM PROGRAM 'seq 1 500'", "UPDATE {t} SET note = 'x' WHERE id < 9"),
    _flow("WITH that changes, RETURNING", _THREE, "WITH gone AS (DELETE FROM {t} WHERE id = 1 RETURNING *) INSERT INTO {t} SELECT id + 50, note FROM gone"),
    _flow("key changed", _THREE, "UPDATE {t} SET id = id + 100 WHERE id > 1", "UPDATE {t} SET note = 'x' WHERE id = 102"),
    _flow("key changed, REPLICA IDENTITY FULL", _THREE, "UPDATE {t} SET id = id + 100 WHERE id > 1", "DELETE FROM {t} WHERE id = 103", made=(PLAIN, "ALTER TABLE {t} REPLICA IDENTITY FULL")),
    _flow("key changed, REPLICA IDENTITY USING INDEX", _THREE, "UPDATE {t} SET id = id + 100 WHERE id > 1", "DELETE FROM {t} WHERE id = 103", made=("CREATE TABLE {t} (id int NOT NULL UNIQUE, note varchar(40))", "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_id_key")),
    _flow("replica identity flipped in the stream", _THREE, "ALTER TABLE {t} REPLICA IDENTITY FULL", "UPDATE {t} SET note = 'full' WHERE id = 1", "ALTER TABLE {t} REPLICA IDENTITY DEFAULT", "UPDATE {t} SET id = 100 WHERE id = 1", "BEGIN", "DELETE FROM {t} WHERE id = 2", "ALTER TABLE {t} REPLICA IDENTITY FULL", "DELETE FROM {t} WHERE id = 3", "COMMIT"),
    _flow("primary key dropped, REPLICA IDENTITY DEFAULT", _THREE, "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey", FAILS + "UPDATE {t} SET note = 'x'", "INSERT INTO {t} VALUES (4, 'four')"),
    _flow("primary key of other columns", _THREE, "BEGIN", "ALTER TABLE {t} ALTER note SET NOT NULL", "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (id, note)", "UPDATE {t} SET note = 'x' WHERE id = 2", "COMMIT", "DELETE FROM {t} WHERE id = 1"),
    _flow("TOASTed value that an update leaves alone", _LARGE_ROWS, "UPDATE {t} SET note = 'x' WHERE id = 1", "UPDATE {t} SET id = 100 WHERE id = 2", "UPDATE {t} SET note = 'y' WHERE id = 100", "DELETE FROM {t} WHERE id = 3", made=(_LARGE, _OUTSIDE)),
    _flow("the same, REPLICA IDENTITY FULL", _LARGE_ROWS, "UPDATE {t} SET note = 'x' WHERE id = 1", "UPDATE {t} SET id = 100 WHERE id = 2", "UPDATE {t} SET note = 'y' WHERE id = 100", "DELETE FROM {t} WHERE id = 3", made=(_LARGE, _OUTSIDE, "ALTER TABLE {t} REPLICA IDENTITY FULL")),
    _flow("TRUNCATE", _THREE, "TRUNCATE {t}", "INSERT INTO {t} VALUES (7, 'after')"),
    _flow("TRUNCATE among changes of a transaction", "BEGIN", _THREE, "TRUNCATE {t} RESTART IDENTITY", "INSERT INTO {t} VALUES (7, 'after')", "COMMIT", "UPDATE {t} SET note = 'x'"),
    _flow("TRUNCATE that is rolled back", _THREE, "BEGIN", "TRUNCATE {t}", "INSERT INTO {t} VALUES (7, 'never')", "ROLLBACK", _AT_MOST),
    _flow("TRUNCATE ... CASCADE of a table that is referred to", _THREE, "TRUNCATE {t}_p CASCADE", "INSERT INTO {t}_p VALUES (7)", "INSERT INTO {t} VALUES (7, 'after')", made=("CREATE TABLE {t}_p (id int PRIMARY KEY)", "INSERT INTO {t}_p VALUES (1), (2), (3)", "CREATE TABLE {t} (id int PRIMARY KEY REFERENCES {t}_p, note varchar(40))")),
    _flow("column added", _THREE, "ALTER TABLE {t} ADD extra int", "INSERT INTO {t} VALUES (4, 'four', 4)"),
    _flow("column added, without a row behind it", _THREE, "ALTER TABLE {t} ADD extra int"),
    _flow("column added with a default", _THREE, "ALTER TABLE {t} ADD extra int NOT NULL DEFAULT 7", "ALTER TABLE {t} ADD price numeric(8,2) DEFAULT 1.5", _AT_MOST),
    _flow("column added with a default that differs from row to row", _THREE, "ALTER TABLE {t} ADD u uuid DEFAULT gen_random_uuid()", _AT_MOST),
    _flow("column dropped", _THREE, "ALTER TABLE {t} ADD extra int", "ALTER TABLE {t} DROP note", "INSERT INTO {t} VALUES (4, 4)"),
    _flow("column renamed among changes of a transaction", "BEGIN", _THREE, "ALTER TABLE {t} RENAME note TO remark", "UPDATE {t} SET remark = 'x' WHERE id = 1", "COMMIT", "DELETE FROM {t} WHERE id = 2"),
    _flow("columns that take each other's names", "INSERT INTO {t} VALUES (1, 'a', 'b')", "BEGIN", "ALTER TABLE {t} RENAME note TO x", "ALTER TABLE {t} RENAME other TO note", "ALTER TABLE {t} RENAME x TO other", "COMMIT", "INSERT INTO {t} VALUES (2, 'c', 'd')", made=("CREATE TABLE {t} (id int PRIMARY KEY, note varchar(40), other varchar(40))",)),
    _flow("column dropped and added again under its name", _THREE, "ALTER TABLE {t} DROP note", "ALTER TABLE {t} ADD note varchar(40)", "INSERT INTO {t} VALUES (4, 'four')"),
    _flow("column's type changed, its values kept", _THREE, "ALTER TABLE {t} ALTER note TYPE text", "INSERT INTO {t} VALUES (4, repeat('long', 100))"),
    _flow("column's type changed, its values written anew", _THREE, "ALTER TABLE {t} ALTER note TYPE varchar(2) USING left(note, 2)", _AT_MOST.replace("behind", "b")),
    _flow("column's values written anew by USING, its type kept", _THREE, "ALTER TABLE {t} ALTER note TYPE varchar(40) USING note || '!'", _AT_MOST),
    _flow("ALTER that is rolled back", "BEGIN", _THREE, "ALTER TABLE {t} ADD extra int", "ROLLBACK", _THREE, "BEGIN", "ALTER TABLE {t} DROP note", "ROLLBACK", _AT_MOST),
    _flow("NOT NULL, DEFAULT, CHECK, comments, an index", _THREE, "ALTER TABLE {t} ALTER note SET NOT NULL, ALTER note SET DEFAULT 'x'", "ALTER TABLE {t} ADD CHECK (id > 0)", "COMMENT ON TABLE {t} IS 'c'", "CREATE INDEX ON {t} (note)", "INSERT INTO {t} (id) VALUES (4)"),
    _flow("generated column added and dropped", _THREE, "ALTER TABLE {t} ADD g int GENERATED ALWAYS AS (id * 2) STORED", "UPDATE {t} SET note = 'x' WHERE id = 1", "ALTER TABLE {t} DROP g", "DELETE FROM {t} WHERE id = 2"),
    _flow("virtual generated column added", _THREE, "ALTER TABLE {t} ADD g int GENERATED ALWAYS AS (id * 2) VIRTUAL", "UPDATE {t} SET note = 'x' WHERE id = 1", platforms=_ONLY_18),
    _flow("table renamed and back", _THREE, "ALTER TABLE {t} RENAME TO {t}_away", "UPDATE {t}_away SET note = 'meanwhile'", "ALTER TABLE {t}_away RENAME TO {t}", "DELETE FROM {t} WHERE id = 2"),
    _flow("table moved to another schema and back", _THREE, "CREATE SCHEMA {t}_aside", "ALTER TABLE {t} SET SCHEMA {t}_aside", "UPDATE {t}_aside.{t} SET note = 'meanwhile'", "ALTER TABLE {t}_aside.{t} SET SCHEMA public", "DELETE FROM {t} WHERE id = 2"),
    _flow("table dropped and created again", _THREE, "DROP TABLE {t}", "CREATE TABLE {t} (id int PRIMARY KEY, note text)", "INSERT INTO {t} VALUES (7, 'another')"),
    _flow("tables that take each other's names", _THREE, "INSERT INTO {t}_b VALUES (8, 'b')", "BEGIN", "ALTER TABLE {t} RENAME TO {t}_x", "ALTER TABLE {t}_b RENAME TO {t}", "ALTER TABLE {t}_x RENAME TO {t}_b", "COMMIT", "INSERT INTO {t} VALUES (9, 'after')", made=(PLAIN, "CREATE TABLE {t}_b (id int PRIMARY KEY, note varchar(40))")),
    _flow("partitioned table: rows, rows that move, a partition that is written itself", "INSERT INTO {t} VALUES (1, 'one'), (2, 'two'), (5, 'five')", "UPDATE {t} SET id = 4 WHERE id = 1", "UPDATE {t}_high SET note = 'itself' WHERE id = 5", "DELETE FROM {t} WHERE id = 2", made=_PARTED),
    _flow("partition made", "INSERT INTO {t} VALUES (1, 'one')", "CREATE TABLE {t}_more PARTITION OF {t} FOR VALUES FROM (1000) TO (2000)", "INSERT INTO {t} VALUES (1500, 'more')", made=_PARTED),
    _flow("partition attached", "INSERT INTO {t} VALUES (1, 'one')", "CREATE TABLE {t}_more (LIKE {t} INCLUDING ALL)", "INSERT INTO {t}_more VALUES (1500, 'before')", "ALTER TABLE {t} ATTACH PARTITION {t}_more FOR VALUES FROM (1000) TO (2000)", "INSERT INTO {t} VALUES (1501, 'behind')", made=_PARTED),
    _flow("partition detached", "INSERT INTO {t} VALUES (1, 'one'), (5, 'five')", "ALTER TABLE {t} DETACH PARTITION {t}_high", "INSERT INTO {t} VALUES (2, 'two')", made=_PARTED),
    _flow("partition truncated", "INSERT INTO {t} VALUES (1, 'one'), (5, 'five')", "TRUNCATE {t}_high", "INSERT INTO {t} VALUES (2, 'two')", made=_PARTED),
    _flow("table that inherits", _THREE, "CREATE TABLE {t}_child () INHERITS ({t})", "INSERT INTO {t}_child VALUES (50, 'the child''s')", "UPDATE ONLY {t} SET note = 'x' WHERE id = 1", "DROP TABLE {t}_child"),
    _flow("foreign key with ON DELETE CASCADE", _THREE, "DELETE FROM {t}_p WHERE id = 2", "UPDATE {t}_p SET id = 30 WHERE id = 3", made=("CREATE TABLE {t}_p (id int PRIMARY KEY)", "INSERT INTO {t}_p VALUES (1), (2), (3)", "CREATE TABLE {t} (id int PRIMARY KEY REFERENCES {t}_p ON DELETE CASCADE ON UPDATE CASCADE, note varchar(40))")),
    _flow("trigger", "CREATE FUNCTION {t}_noted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.note := 'of the trigger'; RETURN NEW; END $$", "CREATE TRIGGER noted BEFORE INSERT ON {t} FOR EACH ROW EXECUTE FUNCTION {t}_noted()", _THREE, "DROP TRIGGER noted ON {t}", _AT_MOST),
    _flow("procedure that commits", "CREATE PROCEDURE {t}_do() LANGUAGE plpgsql AS $$ BEGIN INSERT INTO {t} VALUES (1, 'a'); COMMIT; INSERT INTO {t} VALUES (2, 'b'); ROLLBACK; UPDATE {t} SET note = 'c'; END $$", "CALL {t}_do()"),
    _flow("temporary table, SELECT INTO, materialized view", _THREE, "CREATE TEMPORARY TABLE {t}_tmp AS SELECT * FROM {t}", "INSERT INTO {t} SELECT id + 10, note FROM {t}_tmp", "SELECT * INTO {t}_b FROM {t}", "CREATE MATERIALIZED VIEW {t}_m AS SELECT * FROM {t}", "DELETE FROM {t} WHERE id = 2"),
    _flow("identity and sequence", "INSERT INTO {t} (note) VALUES ('a'), ('b')", "SELECT setval('{t}_id_seq', 50)", "INSERT INTO {t} (note) VALUES ('c')", made=("CREATE TABLE {t} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note varchar(40))",)),
    _flow("VACUUM FULL, CLUSTER, REINDEX", _THREE, "DELETE FROM {t} WHERE id = 2", "VACUUM FULL {t}", "UPDATE {t} SET note = 'x' WHERE id = 1", "CLUSTER {t} USING {t}_pkey", "REINDEX TABLE {t}", "INSERT INTO {t} VALUES (4, 'four')"),
    _flow("UNLOGGED is refused while the table is published", _THREE, FAILS + "ALTER TABLE {t} SET UNLOGGED", _AT_MOST),
    _flow("enum's label added", "INSERT INTO {t} VALUES (1, 'one', 'sad')", "ALTER TYPE {t}_mood ADD VALUE 'fine' BEFORE 'ok'", "INSERT INTO {t} VALUES (2, 'two', 'fine')", made=_MOOD),
    _flow("enum's label renamed", "INSERT INTO {t} VALUES (1, 'one', 'sad')", "ALTER TYPE {t}_mood RENAME VALUE 'sad' TO 'sadder'", "INSERT INTO {t} VALUES (2, 'two', 'sadder')", made=_MOOD),
    _flow("enum's label renamed and back", "ALTER TYPE {t}_mood RENAME VALUE 'sad' TO 'sadder'", "INSERT INTO {t} VALUES (1, 'one', 'sadder')", "ALTER TYPE {t}_mood RENAME VALUE 'sadder' TO 'sad'", made=_MOOD),
    _flow("composite type's attribute added", "INSERT INTO {t} VALUES (1, 'one', '(1,a)')", "ALTER TYPE {t}_pair ADD ATTRIBUTE c int", "INSERT INTO {t} VALUES (2, 'two', '(2,b,3)')", made=_PAIR),
    _flow("rows of another origin", "SET ROLE NONE", "SELECT pg_replication_origin_create('{t}')", "SELECT pg_replication_origin_session_setup('{t}')", _THREE, "SELECT pg_replication_origin_session_reset()", _AT_MOST),
    _flow("messages of an application, in transactions and outside", _THREE, "SELECT pg_logical_emit_message(false, 'app', 'outside')", "BEGIN", "SELECT pg_logical_emit_message(true, 'app', 'inside')", _AT_MOST, "COMMIT"),
    _flow("transaction that the server spills to its disk", "INSERT INTO {t} SELECT n, repeat('x', 40) FROM generate_series(1, 200000) AS n", "DELETE FROM {t} WHERE id > 500"),
    _flow("row of 17 MiB", "INSERT INTO {t} VALUES (1, 'big', repeat('x', 17825792))", "INSERT INTO {t} VALUES (2, 'after', 'x')", made=(_LARGE,)),
    _flow("1,000 columns", "INSERT INTO {t} (id, c7) VALUES (1, 1), (2, 2)", "UPDATE {t} SET c990 = 3 WHERE id = 1", "DELETE FROM {t} WHERE id = 2", made=("CREATE TABLE {t} (id int PRIMARY KEY, note varchar(40), {many_columns})",)),
    _flow("publication that leaves updates out for a part of a transaction", _THREE, "SET ROLE NONE", "BEGIN", "ALTER PUBLICATION menura SET (publish = 'insert')", "UPDATE {t} SET note = 'left out'", "ALTER PUBLICATION menura SET (publish = 'insert, update, delete, truncate')", "COMMIT", _OWNER, "DELETE FROM {t} WHERE id = 2"),
    _flow("table taken out of the publication and put back", _THREE, "SET ROLE NONE", "ALTER PUBLICATION menura DROP TABLE {t}", "UPDATE {t} SET note = 'unpublished'", _OWNER, CATCH_UP, "DELETE FROM {t} WHERE id = 2"),
    _flow("table published with a row filter", _THREE, "SET ROLE NONE", "ALTER PUBLICATION menura DROP TABLE {t}", "ALTER PUBLICATION menura ADD TABLE {t} WHERE (id > 0)"),
    _flow("UNLOGGED table", _THREE, made=("CREATE UNLOGGED TABLE {t} (id int PRIMARY KEY, note varchar(40))",)),
    _flow("table with neither primary key nor replica identity", _THREE, made=("CREATE TABLE {t} (id int, note varchar(40))",)),
    _flow("REPLICA IDENTITY FULL and a generated column: changes are refused", _THREE, FAILS + "UPDATE {t} SET note = 'x'", made=("CREATE TABLE {t} (id int PRIMARY KEY, note varchar(40), g int GENERATED ALWAYS AS (id * 2) STORED)", "ALTER TABLE {t} REPLICA IDENTITY FULL"), platforms=_ONLY_18),
    _flow("server restarted", _THREE, RESTART, "DELETE FROM {t} WHERE id = 2"),
    _flow("log's file switched, checkpoint", _THREE, "SET ROLE NONE", "SELECT pg_switch_wal()", "CHECKPOINT", "DELETE FROM {t} WHERE id = 2"),
)  # fmt: skip

#: of the protocol in the version that is asked for, by the byte that each begins with
MESSAGES: Mapping[str, str] = {
    "B": "Begin",
    "C": "Commit",
    "O": "Origin",
    "R": "Relation",
    "Y": "Type",
    "I": "Insert",
    "U": "Update",
    "D": "Delete",
    "T": "Truncate",
    "M": "Message",
}


def types_of(platform: Release) -> list[Type]:
    return [type_ for type_ in TYPES if platform.name in type_.platforms]


def flows_of(platform: Release) -> list[Flow]:
    return [flow for flow in FLOWS if platform.name in flow.platforms]
