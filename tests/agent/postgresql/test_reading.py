"""Tables that are altered, hidden or odd while they are read for a dump; plans of large ones."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agent.errors import (
    DefinitionMoved,
    FilterColumnIsKey,
    SourceConnectionLost,
    SourceFailed,
    SourceGrantMissing,
    TableColumnUnsupported,
)
from agent.filter import Filter
from agent.sources.postgresql.identifiers import IDENTIFIERS
from agent.sources.postgresql.snapshot import ranges, session
from agent.sources.postgresql.snapshot.reading import PostgresqlTableReader
from tests.agent.postgresql.dump_reading import chunk, plan_of, reader_of, rows_of, walk, whole
from tests.agent.postgresql.logged import Log
from tests.agent.postgresql.sources import USER, config_of
from tests.postgres import SourceServer, source_server

TABLE, KEY = ("public", "t"), ("id",)
DEADLINE_SECONDS = 120


@contextmanager
def reading(server: SourceServer, policy: Filter | None = None) -> Iterator[PostgresqlTableReader]:
    log = Log(server, is_new=not server.run("SELECT 1 FROM pg_replication_slots"))
    try:
        log.read()
        with reader_of(config_of(server, policy=policy), log.seen) as reader:
            yield reader
    finally:
        log.close()


def run(server: SourceServer, *statements: str) -> list[tuple[object, ...]]:
    return server.run(*statements, database="shop")


ALTERED = {
    # between the snapshot and the SELECT; whether what is read is void
    "rewritten": ("ALTER TABLE t ALTER v TYPE bigint", True),
    "rewritten_by_a_default": ("ALTER TABLE t ADD w timestamptz DEFAULT clock_timestamp()", True),
    "emptied": ("TRUNCATE t", True),
    "vacuumed": ("VACUUM FULL t", True),
    "renamed_column": ("ALTER TABLE t RENAME v TO w", True),
    "dropped_column": ("ALTER TABLE t DROP v", True),
    "other_type": ("ALTER TABLE t ALTER note TYPE varchar(9)", True),
    "other_type_of_like_text": ("ALTER TABLE t ALTER short TYPE text", True),
    "other_time_zone": ("SET timezone = 'UTC'; ALTER TABLE t ALTER at TYPE timestamptz", True),
    "dropped": ("DROP TABLE t", True),
    "renamed": ("ALTER TABLE t RENAME TO gone", True),
    "swapped": (
        "ALTER TABLE t RENAME TO gone; CREATE TABLE t AS SELECT id, v, note, short, at FROM gone LIMIT 1",
        True,
    ),
    "added_column": ("ALTER TABLE t ADD w int DEFAULT 5", False),
    "nullable": ("ALTER TABLE t ALTER v DROP NOT NULL", False),
}


def _make(server: SourceServer, rows: int = 5) -> None:
    run(
        server,
        "CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL, note text, short varchar(5), at timestamp)",
        f"INSERT INTO t SELECT i, i, 'a', 'b', '2020-01-01' FROM generate_series(1, {rows}) AS i",
    )


@pytest.mark.parametrize("case", ALTERED)
@pytest.mark.parametrize("by_key", [True, False])
def test_chunk_when_the_table_is_altered_behind_its_snapshot_then_it_is_void_or_as_it_was(
    postgres: SourceServer, case: str, by_key: bool
) -> None:
    statements, is_void = ALTERED[case]
    _make(postgres)
    with reading(postgres) as reader:

        def meanwhile() -> None:
            with postgres.connect("shop") as connection:
                for statement in statements.split("; "):
                    connection.execute(statement)

        def read() -> int:
            if by_key:
                return len(chunk(reader, TABLE, KEY, 10, before=meanwhile)[0])
            return len(whole(reader, TABLE, meanwhile)[0])

        if is_void:
            with pytest.raises(DefinitionMoved) as caught:
                read()
            assert not caught.value.terminal
            assert reader.used is not None
        else:
            assert read() == 5


def test_chunk_when_a_statement_holds_the_table_then_it_is_tried_again_and_holds_nobody_up(
    postgres: SourceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = session.connect
    monkeypatch.setattr(session, "connect", lambda *words: connect(*words, lock_seconds=0.2))
    _make(postgres)
    with reading(postgres) as reader:
        with postgres.connect("shop", autocommit=False) as other:
            other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(SourceFailed, match="55P03") as caught:
                chunk(reader, TABLE, KEY, 10)
            assert not caught.value.terminal
        assert len(chunk(reader, TABLE, KEY, 10)[0]) == 5
        assert run(postgres, "SELECT count(*) FROM pg_locks WHERE relation = 't'::regclass") == [(0,)]


@pytest.mark.parametrize("tls", ["", "hostssl"])
def test_session_when_statements_and_large_results_take_turns_then_both_are_whole(tls: str) -> None:
    limits = "ALTER ROLE menura SET statement_timeout = '9s'", "ALTER ROLE menura SET lock_timeout = '1ms'"
    with source_server(tls=tls) as server:
        server.create_replication_user()
        server.run(*limits)
        _make(server, rows=20_000)
        with reading(server) as reader:
            for _ in range(3):
                assert len(plan_of(reader, TABLE).ranges) == 1
                assert len(walk(reader, TABLE, KEY, 7_000)) == 20_000
                assert len(whole(reader, TABLE)[0]) == 20_000
            tls_used = (
                "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'menura'"
            )
            assert server.run(tls_used) == [(bool(tls),)]


def test_whole_when_the_server_ends_long_transactions_then_this_one_goes_on() -> None:
    with source_server("18") as server:
        server.create_replication_user()
        server.run(f"ALTER ROLE {USER} SET transaction_timeout = '3s'")
        _make(server)
        with reading(server) as reader:
            rows, _ = whole(reader, TABLE, lambda: server.run("SELECT pg_sleep(4)") and None)
            assert len(rows) == 5


def test_chunk_when_it_is_over_then_no_transaction_is_left_open(postgres: SourceServer) -> None:
    _make(postgres)
    open_ones = f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{USER}' AND state <> 'idle'"
    with reading(postgres) as reader:
        for read in (
            lambda: plan_of(reader, TABLE),
            lambda: chunk(reader, TABLE, KEY, 10),
            lambda: whole(reader, TABLE),  # the session that has exported the snapshot ends a moment later
        ):
            read()
            _wait(lambda: run(postgres, open_ones) == [(0,)])


def test_rows_when_columns_are_ignored_or_generated_then_they_are_not_read(postgres: SourceServer) -> None:
    run(
        postgres,
        "CREATE TABLE t (id int PRIMARY KEY, secret text, twice int GENERATED ALWAYS AS (id * 2) STORED, v text)",
        "INSERT INTO t VALUES (1, 'hidden', DEFAULT, 'shown')",
        # who may not read what is ignored reads the rest
        f"REVOKE SELECT ON t FROM {USER}",
        f"GRANT SELECT (id, v) ON t TO {USER}",
    )
    with reading(postgres, Filter(rules={"t": ("secret",)}, identifiers=IDENTIFIERS)) as reader:
        assert tuple(plan_of(reader, TABLE).key) == KEY
        rows = walk(reader, TABLE, KEY, 10)
        assert rows == whole(reader, TABLE)[0] == [{"id": 1, "v": "shown", "_unrepresentable": None}]


def test_plan_when_the_user_may_not_read_the_table_then_the_grant_is_named(postgres: SourceServer) -> None:
    _make(postgres)
    run(postgres, f"REVOKE SELECT ON t FROM {USER}")
    with reading(postgres) as reader:
        with pytest.raises(SourceGrantMissing, match=f'GRANT SELECT ON "public"."t" TO "{USER}"'):
            plan_of(reader, TABLE)
        run(postgres, f"GRANT SELECT ON t TO {USER}")
        assert len(walk(reader, TABLE, KEY, 10)) == 5


def test_plan_when_policies_hide_rows_then_none_is_left_out(postgres: SourceServer) -> None:
    _make(postgres)
    run(postgres, "ALTER TABLE t ENABLE ROW LEVEL SECURITY", "CREATE POLICY few ON t USING (id < 3)")
    with reading(postgres) as reader:
        with pytest.raises(SourceGrantMissing, match=f'ALTER ROLE "{USER}" BYPASSRLS'):
            plan_of(reader, TABLE)
        with pytest.raises(SourceGrantMissing):
            chunk(reader, TABLE, KEY, 10)
        run(postgres, f"ALTER ROLE {USER} BYPASSRLS")
        try:
            assert len(walk(reader, TABLE, KEY, 10)) == 5
        finally:
            run(postgres, f"ALTER ROLE {USER} NOBYPASSRLS")


def test_plan_when_a_key_column_is_ignored_then_says_so(postgres: SourceServer) -> None:
    _make(postgres)
    ignoring = Filter(rules={"t": ("id",)}, identifiers=IDENTIFIERS)
    with reading(postgres, ignoring) as reader, pytest.raises(FilterColumnIsKey):
        plan_of(reader, TABLE)


def test_plan_when_a_table_has_no_columns_then_says_so(postgres: SourceServer) -> None:
    run(postgres, "CREATE TABLE t ()")
    with reading(postgres) as reader, pytest.raises(TableColumnUnsupported):
        plan_of(reader, TABLE)


def test_rows_when_tables_inherit_or_have_partitions_then_each_row_is_of_one_table(postgres: SourceServer) -> None:
    run(
        postgres,
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "CREATE TABLE heir (more int, PRIMARY KEY (id)) INHERITS (t)",
        "INSERT INTO t VALUES (1, 'a')",
        "INSERT INTO heir VALUES (2, 'b', 3)",
        "CREATE TABLE parted (id int, k text, PRIMARY KEY (k, id)) PARTITION BY LIST (k)",
        "CREATE TABLE parted_x PARTITION OF parted FOR VALUES IN ('x')",
        "CREATE TABLE parted_rest (k text NOT NULL, gone int, id int NOT NULL)",
        "ALTER TABLE parted_rest DROP gone",
        "ALTER TABLE parted ATTACH PARTITION parted_rest DEFAULT",
        "INSERT INTO parted SELECT i, CASE WHEN i % 3 = 0 THEN 'x' ELSE 'y' END FROM generate_series(1, 20) AS i",
        # who may read the table may read it, whatever its partitions' rights are
        f"REVOKE ALL ON parted_x, parted_rest FROM {USER}",
    )
    with reading(postgres) as reader:
        assert [row["id"] for row in walk(reader, TABLE, KEY, 10)] == [1]
        assert [row["id"] for row in whole(reader, ("public", "heir"))[0]] == [2]
        key = tuple(plan_of(reader, ("public", "parted")).key)
        found = [(row["k"], row["id"]) for row in walk(reader, ("public", "parted"), key, 3)]
        assert found == sorted(("x" if i % 3 == 0 else "y", i) for i in range(1, 21))


def test_rows_when_they_are_large_then_batches_are_of_a_bounded_size(postgres: SourceServer) -> None:
    run(
        postgres,
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "ALTER TABLE t ALTER v SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT i, repeat(i::text, 1 << 20) FROM generate_series(1, 12) AS i",
    )
    with reading(postgres) as reader, reader.chunk(TABLE):
        rows = reader.read_chunk(TABLE, KEY, "", "", 100, lambda _: None)
        counts = [batch.row_count for batch in rows]
        assert sum(counts) == 12
        assert len(counts) >= 3
        assert rows.source_bytes > 12 << 20


class Stopped(Exception):
    pass


def test_chunk_when_the_caller_leaves_then_the_session_ends(postgres: SourceServer) -> None:
    _make(postgres, rows=200_000)

    def stop(_: int) -> None:
        raise Stopped

    with reading(postgres) as reader:
        with pytest.raises(Stopped), reader.chunk(TABLE):
            list(reader.read_chunk(TABLE, KEY, "", "", 1_000_000, stop))
        _wait(lambda: run(postgres, f"SELECT pid FROM pg_stat_activity WHERE usename = '{USER}'") == [])


@pytest.mark.parametrize("by_key", [True, False])
def test_interrupt_when_a_read_waits_then_it_ends_at_once_there_and_here(postgres: SourceServer, by_key: bool) -> None:
    _make(postgres)
    failed: list[Exception] = []
    with reading(postgres) as reader, postgres.connect("shop", autocommit=False) as other:
        if by_key:
            other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        else:
            other.execute("INSERT INTO t VALUES (66, 1)")

        def read() -> None:
            try:
                chunk(reader, TABLE, KEY, 10) if by_key else whole(reader, TABLE)
            except SourceConnectionLost as error:
                failed.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        _wait(lambda: run(postgres, waiting) == [(1,)])
        reader.interrupt()
        thread.join(DEADLINE_SECONDS)
        reader.end_on_server()
        _wait(lambda: run(postgres, waiting) == [(0,)])
    assert isinstance(failed[0], SourceConnectionLost)


def _wait(condition: object) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_chunk_when_the_server_goes_down_then_the_connection_is_lost(postgres: SourceServer) -> None:
    _make(postgres)
    with reading(postgres) as reader:
        terminate = f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = '{USER}'"
        with pytest.raises(SourceConnectionLost):
            chunk(reader, TABLE, KEY, 10, before=lambda: run(postgres, terminate))


# --- plans

PLANNED = {
    # columns, what of i they are, further statements
    "number": ("id bigint PRIMARY KEY", "i * 3", ()),
    "skewed": ("id bigint PRIMARY KEY", "CASE WHEN i < 20000 THEN i ELSE i * 1000000::bigint END", ()),
    "uuid": ("id uuid PRIMARY KEY", "md5(i::text)::uuid", ()),
    "one_prefix": ("tenant int, id text, PRIMARY KEY (tenant, id)", "7, md5(i::text)", ()),
    "parted": ("id int, v int, PRIMARY KEY (id, v)", "i, i % 3", ("PARTITION BY LIST (v)",)),
}


@pytest.mark.parametrize("is_analyzed", [True, False])
@pytest.mark.parametrize("case", PLANNED)
def test_plan_when_a_table_is_large_then_ranges_have_about_as_many_rows_each(
    postgres: SourceServer, monkeypatch: pytest.MonkeyPatch, case: str, is_analyzed: bool
) -> None:
    monkeypatch.setattr(ranges, "LEAST_ROWS", 4_000)
    monkeypatch.setattr(ranges, "LEAST_BYTES", 1 << 19)
    monkeypatch.setattr(ranges, "SAMPLED_PAGES", 100)
    columns, values, (*parted,) = PLANNED[case]
    count = 40_000
    run(
        postgres,
        f"CREATE TABLE t ({columns}) {' '.join(parted)}",
        *(f"CREATE TABLE t_{n} PARTITION OF t FOR VALUES IN ({n})" for n in range(3) if parted),
        "ALTER TABLE t SET (autovacuum_enabled = off)" if not parted else "SELECT",
        f"INSERT INTO t SELECT {values} FROM generate_series(1, {count}) AS i",
        *(["ANALYZE t"] if is_analyzed else []),
    )
    with reading(postgres) as reader:
        plan = plan_of(reader, TABLE)
        key = tuple(plan.key)
        found = [walk(reader, TABLE, key, 50_000, part.lower, part.upper) for part in plan.ranges]
        assert [part.number for part in plan.ranges] == list(range(len(plan.ranges)))
        sizes = [len(rows) for rows in found]
        assert sum(sizes) == count
        assert len({tuple(row[name] for name in key) for rows in found for row in rows}) == count
        assert 2 <= len(sizes) <= 32
        assert max(sizes) < 4 * count / len(sizes)
        assert plan.estimated_bytes > 1 << 20
        if is_analyzed:
            assert abs(plan.estimated_rows - count) < count / 10
        else:
            assert not plan.HasField("estimated_rows")
        if case == "number":
            assert (plan.least_key, plan.greatest_key) == (3, 3 * count)
        # without a look at rows it is one
        (only,) = plan_of(reader, TABLE, looks_at_rows=False).ranges
        assert (only.lower, only.upper) == ("", "")


def test_plan_when_pages_can_not_be_sampled_then_it_is_one_range(
    postgres: SourceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "LEAST_BYTES", 1 << 10)
    monkeypatch.setattr(ranges, "SAMPLED_PAGES", -1)  # the server refuses it
    _make(postgres, rows=3_000)
    with reading(postgres) as reader:
        plan = plan_of(reader, TABLE)
        assert len(plan.ranges) == 1
        assert (plan.least_key, plan.greatest_key) == (1, 3_000)


def test_plan_when_re_reads_did_not_settle_a_table_then_it_is_read_whole(postgres: SourceServer) -> None:
    _make(postgres)
    with reading(postgres) as reader:
        reader._state.saw_partial_rows(TABLE)
        assert plan_of(reader, TABLE).key
        plan = plan_of(reader, TABLE, is_repeated=True)
        assert not plan.key
        assert "re-reads" in plan.warning


def test_plan_when_a_collation_is_of_another_version_then_its_order_is_not_trusted(postgres: SourceServer) -> None:
    run(
        postgres,
        'CREATE TABLE t (id text COLLATE "de-x-icu" PRIMARY KEY, n int NOT NULL)',
        """UPDATE pg_collation SET collversion = '1' WHERE collname = 'de-x-icu'""",
    )
    with reading(postgres) as reader:
        plan = plan_of(reader, TABLE)
        assert not plan.key
        assert "version 1 of a collation" in plan.warning
        run(postgres, "CREATE UNIQUE INDEX ON t (n)")
        assert tuple(plan_of(reader, TABLE).key) == ("n",)


def test_plan_when_a_whole_table_is_large_beside_the_wal_that_is_kept_then_warns(postgres: SourceServer) -> None:
    run(
        postgres,
        "CREATE TABLE t (v text)",
        "INSERT INTO t SELECT repeat('x', 100) FROM generate_series(1, 20000)",
        "ALTER SYSTEM SET max_slot_wal_keep_size = '3MB'",
        "SELECT pg_reload_conf()",
    )
    try:
        with reading(postgres) as reader:
            _wait(lambda: run(postgres, "SHOW max_slot_wal_keep_size") == [("3MB",)])
            plan = plan_of(reader, TABLE)
            assert not plan.key
            assert "max_slot_wal_keep_size" in plan.warning
    finally:
        run(postgres, "ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


def test_rows_of_a_batch_when_read_twice_then_are_the_same(postgres: SourceServer) -> None:
    _make(postgres)
    with reading(postgres) as reader, reader.chunk(TABLE):
        first = rows_of(reader.read_chunk(TABLE, KEY, "", "", 10, lambda _: None))
        second = rows_of(reader.read_chunk(TABLE, KEY, "", "", 10, lambda _: None))
        assert first == second
