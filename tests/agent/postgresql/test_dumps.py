"""Dumps from real servers to the gateway's ledger, while others write."""

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from menura.v1 import config_pb2, snapshot_pb2

from agent.sources.postgresql.snapshot import ranges
from tests.agent.dump_ledger import Dump, merged
from tests.agent.dumping import SLOW, agent_inside, dumped, now, poll, small_chunks, wait_dumped, wait_status
from tests.agent.gateway_double import GatewayDouble, Table
from tests.agent.postgresql.logged import wait_held
from tests.agent.postgresql.sources import SOURCE, entries, login, source
from tests.agent.running import write_config
from tests.agent.test_replication import last_state
from tests.postgres import SourceServer, standby_of

#: one in CI; more, e.g. MENURA_DUMP_SEEDS=40, in a long run
SEEDS = range(1, 1 + int(os.environ.get("MENURA_DUMP_SEEDS", "1")))
Status = snapshot_pb2.DumpStatus
END_SECONDS = 300


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayDouble]:
    small_chunks(monkeypatch)
    monkeypatch.setattr(ranges, "LEAST_ROWS", 600)
    monkeypatch.setattr(ranges, "LEAST_BYTES", 1 << 14)
    double = GatewayDouble()
    yield double
    double.stop()


@contextmanager
def running(folder: Path, gateway: GatewayDouble, server: SourceServer, **others: object) -> Iterator[None]:
    with agent_inside(write_config(folder, gateway.address, {SOURCE: source(server, **others)})):
        yield


def run(server: SourceServer, *statements: str) -> list[tuple[object, ...]]:
    return server.run(*statements, database="shop")


def create(
    server: SourceServer, key: str = "PRIMARY KEY (id)", rows: int = 1000, table: str = "orders", id_: str = "int"
) -> Table:
    run(
        server,
        "DO $$ BEGIN CREATE PUBLICATION menura FOR ALL TABLES WITH (publish_via_partition_root = true);"
        " EXCEPTION WHEN duplicate_object THEN NULL; END $$",
        f"CREATE TABLE {table} ({', '.join(filter(None, (f'id {id_} NOT NULL, name text NOT NULL, note text', key)))})",
    )
    fill(server, table, rows)
    return ("public", table)


def fill(server: SourceServer, table: str, rows: int) -> None:
    """Ids 3, 6, 9, ..."""
    run(
        server,
        f"INSERT INTO {table} SELECT n * 3, 'Name ' || n % 50, 'first' FROM generate_series(1, {rows}) AS n",
        f"ANALYZE {table}",
    )


class Writers:
    """Changes rows of a table (id, name, note) at random: inserts, updates, deletes, keys, re-inserts."""

    def __init__(self, server: SourceServer, table: str, seed: int, most_id: int, threads: int = 2) -> None:
        self._server, self._table, self._most_id = server, table, most_id
        self._stopping = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(random.Random(seed * 100 + number),))
            for number in range(threads)
        ]

    def __enter__(self) -> "Writers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(END_SECONDS)
        assert not self._failures, self._failures

    def _guarded(self, chance: random.Random) -> None:
        try:
            with self._server.connect("shop", autocommit=False) as connection:
                connection.execute("SET deadlock_timeout = '50ms'")
                connection.commit()
                while not self._stopping.is_set():
                    self._transaction(connection, chance)
        except BaseException as failed:
            self._failures.append(failed)
            raise

    def _transaction(self, connection: psycopg.Connection, chance: random.Random) -> None:
        try:
            for _ in range(chance.randint(1, 4)):
                if chance.random() < 0.3:
                    connection.execute("SAVEPOINT s")
                connection.execute(self._statement(chance))
            connection.rollback() if chance.random() < 0.1 else connection.commit()
        except (psycopg.errors.TransactionRollback, psycopg.errors.UniqueViolation):
            connection.rollback()

    def _statement(self, chance: random.Random) -> str:
        one, other = chance.randint(1, self._most_id), chance.randint(1, self._most_id)
        note = f"'{chance.randint(0, 10**9)}'"
        insert = f"INSERT INTO {self._table} (id, name, note) VALUES ({one}, 'Näme {one % 7}', {note})"
        return chance.choice(
            (
                f"{insert}, ({other}, 'b', '') ON CONFLICT DO NOTHING",
                f"UPDATE {self._table} SET note = {note} WHERE id = {one}",
                f"UPDATE {self._table} SET note = {note} WHERE id BETWEEN {one} AND {one + 5}",
                f"DELETE FROM {self._table} WHERE id = {one}",
                f"UPDATE {self._table} SET id = {other} WHERE id = {one}",
                f"UPDATE {self._table} SET id = {other}, name = 'moved' WHERE id = {one}",
                f"UPDATE {self._table} SET id = {self._most_id + 1} - id WHERE id BETWEEN {one} AND {one + 2}",
            )
        )


def selected(server: SourceServer, table: Table, key: tuple[str, ...]) -> dict[tuple[object, ...], dict[str, object]]:
    with server.connect("shop", row_factory=psycopg.rows.dict_row) as connection:
        found = connection.execute(f'SELECT * FROM "{table[0]}"."{table[1]}"').fetchall()
    return {tuple(row[name] for name in key): dict(row, _unrepresentable=None) for row in found}


def wait_equal(gateway: GatewayDouble, server: SourceServer, dump: Dump, key: tuple[str, ...]) -> None:
    """Nobody writes any more: the lake becomes the table."""
    expected = selected(server, dump.table, key)
    poll(lambda: now(gateway, dump, key) == expected)
    assert now(gateway, dump, key) == expected


@pytest.mark.parametrize("key", [("id",), ("name", "id")])
@pytest.mark.parametrize("seed", SEEDS)
def test_dump_under_load_when_it_ends_then_chunks_and_changes_are_the_table(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path, key: tuple[str, ...], seed: int
) -> None:
    table = create(postgres, f"PRIMARY KEY ({', '.join(key)})", rows=0)
    gateway.sync(SOURCE, table, now=True)
    record = gateway.source(SOURCE)
    with running(tmp_path, gateway, postgres):
        gateway.wait(lambda: record.committed)
        fill(postgres, "orders", 2000)  # so the changes alone are the table too
        for number in range(2):
            with Writers(postgres, "orders", 10 * seed + number, most_id=8000):
                dump = gateway.dump(SOURCE, f"dump-{number}", table)
                wait_dumped(gateway, dump)
            last_gsn = next(cut.last_gsn for cut in record.committed if cut.cut == dump.dumped_cut)
            changes = [row for row in gateway.rows(SOURCE, table) if int(str(row["_gsn"])) <= last_gsn]
            assert dumped(gateway, dump, key) == merged(changes, [], key)
            chunks = [chunk for chunk in record.ledger.chunks if chunk.dump == dump.dump]
            assert len(chunks) > 10
            assert len({chunk.end.range for chunk in chunks}) > 1
            assert {name for chunk in chunks for name in chunk.schema_ids} == {
                batch.schema_id for batch in record.batches
            }
            wait_equal(gateway, postgres, dump, key)
    assert not record.ledger.ignored


def test_dump_when_commits_are_held_at_random_then_no_row_is_lost_or_comes_back(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """A commit that waits for a standby is in the log, and no SELECT shows it."""
    table = create(postgres, rows=1500)
    gateway.sync(SOURCE, table, now=True)
    with running(tmp_path, gateway, postgres):
        with Writers(postgres, "orders", 5, most_id=6000):
            for number in range(3):
                dump = gateway.dump(SOURCE, f"dump-{number}", table)
                while not dump.is_over:
                    postgres.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
                    wait_held(postgres, 2)
                    before = len(gateway.source(SOURCE).ledger.chunks)
                    _wait_a_moment(lambda of=before: len(gateway.source(SOURCE).ledger.chunks) > of)
                    postgres.run("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
                    _wait_a_moment(lambda of=before: len(gateway.source(SOURCE).ledger.chunks) > of + 1)
                wait_dumped(gateway, dump)
        wait_equal(gateway, postgres, dump, ("id",))


def _wait_a_moment(condition: object) -> None:
    """Whether it comes or not makes no difference to what is to be shown."""
    deadline = time.monotonic() + 1
    while not condition() and time.monotonic() < deadline:  # type: ignore[operator]
        time.sleep(0.01)


def test_dump_from_a_standby_when_others_write_then_it_is_the_table(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = create(postgres, rows=2000)
    with standby_of(postgres) as standby:
        gateway.sync(SOURCE, table, dump="first")
        parts = {"client": entries(login(standby)), "replication": entries(login(postgres))}
        with running(tmp_path, gateway, postgres, **parts):
            gateway.wait(lambda: gateway.source(SOURCE).replicates)
            with Writers(postgres, "orders", 6, most_id=8000):
                dump = gateway.dump(SOURCE, "first", table)
                wait_dumped(gateway, dump)
            wait_equal(gateway, postgres, dump, ("id",))


def test_dump_when_a_sync_begins_with_it_then_the_table_is_whole_and_its_state_says_so(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = create(postgres)
    gateway.sync(SOURCE, table, dump="first")
    with running(tmp_path, gateway, postgres):
        gateway.wait(lambda: gateway.source(SOURCE).replicates)
        with Writers(postgres, "orders", 1, most_id=4000):
            dump = gateway.dump(SOURCE, "first", table, limits=SLOW)
            gateway.wait(lambda: (state := last_state(gateway, table)) and state.state == config_pb2.TableState.DUMPING)
            gateway.order(SOURCE, dump, limits=snapshot_pb2.DumpLimits())
            wait_dumped(gateway, dump)
        wait_equal(gateway, postgres, dump, ("id",))
        gateway.wait(lambda: (state := last_state(gateway, table)) and state.state == config_pb2.TableState.STREAMING)
    started = [start for cut in gateway.source(SOURCE).committed for start in cut.started]
    assert [start.earlier_rows_missing for start in started] == [""]


@pytest.mark.parametrize("rows", [0, 1, 2, 700])
def test_dump_when_nobody_writes_then_its_chunks_do_not_wait_for_a_change(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path, rows: int
) -> None:
    table = create(postgres, rows=rows)
    gateway.sync(SOURCE, table, dump="quiet")
    dump = gateway.dump(SOURCE, "quiet", table)
    with running(tmp_path, gateway, postgres):
        wait_dumped(gateway, dump)
    assert dumped(gateway, dump, ("id",)) == selected(postgres, table, ("id",))


def test_dump_when_a_table_has_no_key_then_it_begins_with_its_snapshot(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    other = create(postgres, table="items")
    gateway.sync(SOURCE, other, now=True)
    with running(tmp_path, gateway, postgres), Writers(postgres, "items", 2, most_id=4000):
        gateway.wait(lambda: gateway.source(SOURCE).committed)
        table = create(postgres, key="")
        run(postgres, "ALTER TABLE orders REPLICA IDENTITY FULL", "CREATE INDEX ON orders (id)")
        gateway.sync(SOURCE, table, dump="whole")
        dump = gateway.dump(SOURCE, "whole", table)
        with Writers(postgres, "orders", 3, most_id=50_000_000):  # ids are not drawn twice
            wait_dumped(gateway, dump)
        wait_equal(gateway, postgres, dump, ("id", "note"))
        chunks = [chunk for chunk in gateway.source(SOURCE).ledger.chunks if chunk.dump == "whole"]
        assert len(chunks) == 1
        assert dump.dumped is not None
        assert dump.dumped.removes_rows
        assert chunks[0].gsn == dump.dumped.gsn + 1


def test_dump_when_only_tables_without_keys_begin_then_the_slot_is_there_before_their_snapshots(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    tables = [create(postgres, key="", table=f"t{number}", rows=300) for number in range(3)]
    run(postgres, *(f"ALTER TABLE {table[1]} REPLICA IDENTITY FULL" for table in tables))
    with running(tmp_path, gateway, postgres), ExitStack() as writing:
        for number, table in enumerate(tables):
            writing.enter_context(Writers(postgres, table[1], 20 + number, most_id=50_000_000, threads=1))
            gateway.sync(SOURCE, table, dump=table[1])
        dumps = [gateway.dump(SOURCE, table[1], table) for table in tables]
        for dump in dumps:
            wait_dumped(gateway, dump)
        writing.close()
        for dump in dumps:
            wait_equal(gateway, postgres, dump, ("id", "note"))


ODD_KEYS = {
    "bigint": "id::bigint - 1500",
    "numeric": "id / 3.0",
    "uuid": "md5(id::text)::uuid",
    "text": "'é' || id",
    "timestamptz": "'2020-01-01'::timestamptz + id * interval '1 hour'",
    "citext": "('K' || id)::citext",
    "mood": "CASE WHEN id % 2 = 0 THEN 'even' ELSE 'odd' END::mood",
}


def test_dump_when_keys_are_of_other_types_then_it_and_the_stream_send_the_same(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    run(postgres, "CREATE EXTENSION citext", "CREATE TYPE mood AS ENUM ('odd', 'even')")
    tables = [create(postgres, table=f"by_{type_}", rows=1000) for type_ in ODD_KEYS]
    for (_, table), (type_, value) in zip(tables, ODD_KEYS.items(), strict=True):
        run(
            postgres,
            f"ALTER TABLE {table} ADD k {type_}",
            f"UPDATE {table} SET k = {value}",
            f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey, ADD PRIMARY KEY (k, id)",
        )
    gateway.sync(SOURCE, *tables, now=True)
    with running(tmp_path, gateway, postgres):
        gateway.wait(lambda: gateway.source(SOURCE).committed)
        dumps = [gateway.dump(SOURCE, table[1], table) for table in tables]
        for dump in dumps:
            run(postgres, f"UPDATE {dump.table[1]} SET id = id + 1, note = 'new' WHERE id % 7 = 0")
            wait_dumped(gateway, dump)
            run(postgres, f"UPDATE {dump.table[1]} SET id = id + 2 WHERE id % 5 = 0")
            assert dump.plan is not None
            assert tuple(dump.plan.key) == ("k", "id")
        for dump in dumps:
            expected = sorted(run(postgres, f"SELECT id, name, note FROM {dump.table[1]}"))
            poll(lambda of=dump, rows=expected: _by_id(gateway, of) == rows)
            assert _by_id(gateway, dump) == expected


def _by_id(gateway: GatewayDouble, dump: Dump) -> list[tuple[object, ...]]:
    return sorted((row["id"], row["name"], row["note"]) for row in now(gateway, dump, ("k", "id")).values())


def test_dump_when_a_partitioned_table_is_written_to_then_rows_that_change_their_partition_are_there_once(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    run(
        postgres,
        "CREATE PUBLICATION menura FOR ALL TABLES WITH (publish_via_partition_root = true)",
        "CREATE TABLE orders (id int PRIMARY KEY, name text, note text) PARTITION BY RANGE (id)",
        *(
            f"CREATE TABLE orders_{n} PARTITION OF orders FOR VALUES FROM ({n * 1000}) TO ({n * 1000 + 1000})"
            for n in range(8)
        ),
        "CREATE TABLE orders_rest PARTITION OF orders DEFAULT",
        "INSERT INTO orders SELECT n * 3, 'Name', 'first' FROM generate_series(1, 2000) AS n",
    )
    table = ("public", "orders")
    gateway.sync(SOURCE, table, now=True)
    with running(tmp_path, gateway, postgres):
        with Writers(postgres, "orders", 9, most_id=8000):
            dump = gateway.dump(SOURCE, "parts", table)
            wait_dumped(gateway, dump)
        wait_equal(gateway, postgres, dump, ("id",))


def test_dump_when_paused_and_resumed_then_it_goes_on_where_it_was(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = create(postgres, rows=3000)
    gateway.sync(SOURCE, table, now=True)
    slow = snapshot_pb2.DumpLimits(rows_per_second=100)
    with running(tmp_path, gateway, postgres):
        dump = gateway.dump(SOURCE, "slow", table, limits=slow)
        ledger = gateway.source(SOURCE).ledger
        gateway.wait(lambda: len(ledger.chunks) > 2)
        assert wait_status(gateway, dump, "own limit is 100 rows").state == Status.READING
        gateway.order(SOURCE, dump, paused=True)
        gateway.wait(lambda: dump.statuses[-1].state == Status.PAUSED)
        gateway.order(SOURCE, dump, paused=False, limits=snapshot_pb2.DumpLimits())
        wait_dumped(gateway, dump)
        assert dumped(gateway, dump, ("id",)) == selected(postgres, table, ("id",))


def test_dump_when_cancelled_then_nothing_of_it_is_read_on_the_server_any_more(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = create(postgres, rows=3000)
    gateway.sync(SOURCE, table, now=True)
    slow = snapshot_pb2.DumpLimits(rows_per_second=1)
    with running(tmp_path, gateway, postgres):
        dump = gateway.dump(SOURCE, "slow", table, limits=slow)
        gateway.wait(lambda: gateway.source(SOURCE).ledger.received_rows)
        gateway.order(SOURCE, dump, cancelled=True)
        reads = (
            "SELECT pid FROM pg_stat_activity WHERE usename = 'menura' AND state <> 'idle'"
            " AND backend_type = 'client backend'"
        )
        gateway.wait(lambda: not postgres.run(reads))
        again = gateway.dump(SOURCE, "again", table)
        wait_dumped(gateway, again)
        assert dumped(gateway, again, ("id",)) == selected(postgres, table, ("id",))


def test_dump_when_the_table_is_altered_in_its_middle_then_it_goes_on_with_the_new_columns(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = create(postgres, rows=3000)
    gateway.sync(SOURCE, table, now=True)
    with running(tmp_path, gateway, postgres):
        with Writers(postgres, "orders", 11, most_id=9000):
            dump = gateway.dump(SOURCE, "altered", table, limits=snapshot_pb2.DumpLimits(rows_per_second=300))
            ledger = gateway.source(SOURCE).ledger
            gateway.wait(lambda: len(ledger.chunks) > 3)
            run(postgres, "ALTER TABLE orders ADD extra int DEFAULT 5")
            before = len(ledger.chunks)
            gateway.wait(lambda: len(ledger.chunks) > before + 3)
            gateway.order(SOURCE, dump, limits=snapshot_pb2.DumpLimits())
            wait_dumped(gateway, dump)
        expected = selected(postgres, table, ("id",))

        def is_equal() -> bool:
            found = now(gateway, dump, ("id",))
            lacking = {"extra": 5}  # what rows from before hold, as the event says
            return {place: lacking | row for place, row in found.items()} == expected

        poll(is_equal)
        assert is_equal()


def test_dump_when_the_server_is_restarted_in_its_middle_then_it_goes_on(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = create(postgres, rows=3000)
    gateway.sync(SOURCE, table, now=True)
    with running(tmp_path, gateway, postgres):
        dump = gateway.dump(SOURCE, "long", table, limits=snapshot_pb2.DumpLimits(rows_per_second=300))
        ledger = gateway.source(SOURCE).ledger
        gateway.wait(lambda: len(ledger.chunks) > 3)
        postgres.stop("immediate")
        postgres.start()
        run(postgres, "DELETE FROM orders WHERE id % 2 = 0", "UPDATE orders SET id = id + 20000 WHERE id % 3 = 0")
        gateway.order(SOURCE, dump, limits=snapshot_pb2.DumpLimits())
        wait_dumped(gateway, dump)
        wait_equal(gateway, postgres, dump, ("id",))


@pytest.mark.parametrize("is_seen", [True, False])
def test_dump_when_a_transaction_was_open_before_the_stream_then_it_waits_only_where_it_can_not_see_it(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path, is_seen: bool
) -> None:
    """Whether it has committed, and is not visible yet, nobody knows who may not see what others' sessions do."""
    table = create(postgres)
    gateway.sync(SOURCE, table, now=True)
    with running(tmp_path, gateway, postgres):  # a new slot waits for all transactions
        gateway.wait(lambda: gateway.source(SOURCE).committed)
    postgres.run(f"{'GRANT pg_read_all_stats TO' if is_seen else 'REVOKE pg_read_all_stats FROM'} menura")
    with postgres.connect("shop", autocommit=False) as other:
        other.execute("INSERT INTO orders VALUES (-5, 'late')")
        with running(tmp_path, gateway, postgres):
            dump = gateway.dump(SOURCE, "open", table)
            if is_seen:
                wait_dumped(gateway, dump)
                other.commit()
            else:
                wait_status(gateway, dump, "transactions that ran when the stream began are not over")
                other.commit()
                wait_dumped(gateway, dump)
            wait_equal(gateway, postgres, dump, ("id",))


@pytest.mark.parametrize("seed", SEEDS)
def test_dump_when_tables_join_under_load_then_each_is_its_table(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path, seed: int
) -> None:
    tables = [create(postgres, rows=2000), *(create(postgres, rows=30, table=f"small_{n}") for n in range(3))]
    gateway.sync(SOURCE, tables[0], now=True)
    ledger = gateway.source(SOURCE).ledger
    with running(tmp_path, gateway, postgres):
        with ExitStack() as writing:
            for number, table in enumerate(tables):
                writing.enter_context(Writers(postgres, table[1], 7 * seed + number, 8000, threads=1))
            limits = snapshot_pb2.DumpLimits(rows_per_second=1000)
            dumps = [gateway.dump(SOURCE, "large", tables[0], limits=limits)]
            for table in tables[1:]:
                gateway.wait(lambda: sum(chunk.dump == "large" for chunk in ledger.chunks) > 4 * len(dumps))
                gateway.sync(SOURCE, table, dump=table[1])
                dumps.append(gateway.dump(SOURCE, table[1], table))
                wait_dumped(gateway, dumps[-1])
            wait_dumped(gateway, dumps[0])
        for dump in dumps:
            wait_equal(gateway, postgres, dump, ("id",))
    assert not ledger.ignored


def test_dump_when_the_user_may_not_read_the_table_then_it_fails_with_the_grant(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = create(postgres)
    run(postgres, "REVOKE SELECT ON orders FROM menura", "CREATE TABLE other (id int)")
    gateway.sync(SOURCE, table, now=True)
    dump = gateway.dump(SOURCE, "blind", table)
    with running(tmp_path, gateway, postgres):
        gateway.wait(lambda: dump.failed)
    assert dump.failed is not None
    assert dump.failed.code == "SOURCE_GRANT_MISSING"
    assert 'GRANT SELECT ON "public"."orders" TO "menura"' in dump.failed.remedy
