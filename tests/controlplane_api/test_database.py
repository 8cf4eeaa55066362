import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import JSON, Boolean, Float, Integer, MetaData, Table, insert, inspect, select, text

from controlplane_api import revisions
from controlplane_api.database import Database, open_database
from controlplane_api.errors import DatabaseTooNew, DatabaseUnavailable, DatabaseUnsupported
from controlplane_api.migrating import alembic_config, upgrade
from controlplane_api.models import POSITION_OF_SYNC, Base, DumpRange, Sync
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import Assignment, GatewayRun, SourceKey
from tests.newest_schema import FILE, migrated_schema
from tests.postgres import PostgreSQL
from tests.stack import wait_for


def _open_without_upgrade(url: str, monkeypatch: pytest.MonkeyPatch) -> Database:
    with monkeypatch.context() as patch:
        patch.setattr("controlplane_api.revisions.bring_to_newest", lambda _connection: None)
        return open_database(url)


def test_open_database_when_empty_then_schema_equals_models(empty_url: str):
    database = open_database(empty_url)
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    database.close()


def test_newest_schema_of_sqlite_is_what_all_migrations_make():
    assert FILE.read_text("utf-8") == migrated_schema(), "run: python -m tests.newest_schema"


def test_newest_revision_is_the_head_of_the_migrations():
    scripts = ScriptDirectory.from_config(alembic_config())
    assert scripts.get_heads() == [revisions.newest_revision()]


def test_open_database_when_it_is_new_or_newest_then_no_migration_is_loaded(tmp_path: Path):
    program = (
        "import sys; from controlplane_api.database import open_database;"
        f" [open_database('sqlite:///{tmp_path}/control.db').close() for _ in range(2)];"
        " print('alembic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_migrations_when_run_one_by_one_then_each_goes_up_and_down(empty_url: str, monkeypatch: pytest.MonkeyPatch):
    database = _open_without_upgrade(empty_url, monkeypatch)
    revisions = [script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()][::-1]
    for revision in revisions:
        with database.write() as connection:
            upgrade(connection, revision)
    with database.write() as connection:
        config = alembic_config()
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        assert set(inspect(connection).get_table_names()) == {"alembic_version"}
        upgrade(connection)
    database.close()


def test_migration_when_a_dump_of_0003_runs_then_its_ranges_keep_what_their_chunks_counted(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
):
    database = _open_without_upgrade(empty_url, monkeypatch)
    with database.write() as connection:
        upgrade(connection, "0003")
        for statement in DUMP_OF_0003:
            connection.execute(text(statement))
        upgrade(connection)
        ranges = connection.execute(select(DumpRange).order_by(DumpRange.number)).all()
    assert [(each.reached, each.rows, each.bytes, each.chunks, each.former) for each in ranges] == [
        ('["9"]', 30, 300, 2, None), ('["20"]', 0, 0, 0, None),
    ]  # fmt: skip
    database.close()


AUDIT_OF_0044 = "INSERT INTO audit (at_us, tenant, actor, action, refused, found) VALUES (1, 'acme', 'a', 'b', '', 'c')"
INVALID = (
    "CREATE INDEX ix_audit_tenant_id ON audit (tenant)",
    "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'ix_audit_tenant_id'::regclass",
)


@pytest.mark.parametrize("leftover", [(), INVALID])
def test_migration_of_0044_when_postgresql_builds_the_audit_logs_index_then_others_write_meanwhile(
    leftover: tuple[str, ...], postgres: PostgreSQL, monkeypatch: pytest.MonkeyPatch
):
    database = _open_without_upgrade(postgres.fresh_database(), monkeypatch)
    url = database.engine.url.render_as_string(hide_password=False)
    with database.write() as connection:
        upgrade(connection, "0044")
        for statement in (AUDIT_OF_0044, *leftover):
            connection.execute(text(statement))
    with ThreadPoolExecutor() as threads:
        with database.write() as early:
            early.execute(text(AUDIT_OF_0044))
            opening = [threads.submit(open_database, url) for _ in range(2)]
            waits = text(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
                " AND query LIKE '%INDEX CONCURRENTLY%'"
            )

            def is_building() -> bool:
                with database.read() as connection:
                    return bool(connection.execute(waits).scalar_one())

            wait_for("one of them to build", is_building)
            with database.write() as others:
                others.execute(text("SET LOCAL lock_timeout = '5s'"))
                others.execute(text(AUDIT_OF_0044))
            assert not any(each.done() for each in opening)
        for each in opening:
            each.result(timeout=60).close()
    with database.read() as connection:
        index = "SELECT indisvalid, pg_get_indexdef(indexrelid) FROM pg_index"
        found = connection.execute(text(f"{index} WHERE indexrelid = 'ix_audit_tenant_id'::regclass")).one()
        assert revisions.is_newest(connection)
        assert connection.execute(text("SELECT count(*) FROM audit")).scalar_one() == 3
    assert found[0] and found[1].endswith("(tenant, id)")
    database.close()


DUMP_OF_0003 = (
    "INSERT INTO tenant VALUES (1, 'acme', 0)",
    "INSERT INTO source VALUES (1, 1, NULL, 'shop', '', '', '', '', '', 0, NULL, NULL, 0)",
    "INSERT INTO source_table VALUES (1, 1, 'shop', 'orders', '', '', NULL, NULL, '[]', '[]', false, false, '')",
    "INSERT INTO dump VALUES (1, 'u', 1, 1, 'running', 0, 0, NULL, NULL, 0, false, false, 0, 0, 0, 0, '[\"id\"]',"
    " NULL, NULL, NULL, NULL, '', 5, 4, 30, 300, 2)",
    """INSERT INTO dump_range VALUES (1, 0, '', '["20"]', '["9"]', false, 30),"""
    """ (1, 1, '["20"]', '', '["20"]', false, 0)""",
    """INSERT INTO dump_chunk VALUES (1, 1, 0, '', '["5"]', true, 5, 1, 10, 100, 0, 0, '', 0),"""
    """ (1, 2, 0, '["5"]', '["9"]', true, 5, 2, 20, 200, 0, 0, '', 0),"""
    """ (1, 3, 1, '["7"]', '["8"]', false, 5, 2, 70, 700, 0, 0, '', 0)""",
)


SYNCS_OF_0013 = (
    "INSERT INTO tenant VALUES (1, 'acme', 0)",
    "INSERT INTO source (id, tenant_id, name, flavor, server_version, server_uuid, address, policy_sha256, generation,"
    " dump_generation, accepted_server, warnings) VALUES (1, 1, 'shop', '', '', '', '', '', 0, 0, '', '[]')",
    *(
        f"INSERT INTO source_table VALUES ({n}, 1, 'shop', 't{n}', '', '', NULL, NULL, '[]', '[]', false, false, '')"
        for n in (1, 2, 3)
    ),
    *(
        "INSERT INTO sync (table_id, source_id, desired, start_text, changed_generation, failed, state, position,"
        " earlier_rows_missing, ignored_columns, rows, bytes, lake_rereads_per_hour)"
        f" VALUES ({n}, 1, 'syncing', '', 0, false, 'streaming', {position}, '', '[]', 0, 0, 0)"
        for n, position in ((1, """'{"kind": "mysql", "text": "1-9", "token": ""}'"""), (2, "NULL"), (3, "'{}'"))
    ),
)


def test_migration_when_syncs_of_0013_have_positions_then_they_keep_them(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
):
    database = _open_without_upgrade(empty_url, monkeypatch)
    with database.write() as connection:
        upgrade(connection, "0013")
        for statement in SYNCS_OF_0013:
            connection.exec_driver_sql(statement)
        upgrade(connection)
        found = connection.execute(select(Sync.table_id, POSITION_OF_SYNC).order_by(Sync.table_id)).all()
    assert found == [(1, {"kind": "mysql", "text": "1-9", "token": ""}), (2, None), (3, {})]
    database.close()


def test_migrations_when_a_database_of_0015_has_rows_in_all_tables_then_each_keeps_what_it_says(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
):
    database = _open_without_upgrade(empty_url, monkeypatch)
    with database.write() as connection:
        upgrade(connection, "0015")
        before = MetaData()
        before.reflect(connection)
        tables = [table for table in before.sorted_tables if table.name != "alembic_version"]
        assert len(tables) == 21
        for table in tables:
            connection.execute(insert(table), [_row(table, number) for number in (1, 2)])
        kept = {table: connection.execute(select(table)).mappings().all() for table in tables}
        upgrade(connection)
        after = MetaData()
        after.reflect(connection)
        for table, rows in kept.items():
            now = after.tables[table.name]
            lost = {column.name for column in table.c} - {column.name for column in now.c}
            assert lost == ({"expires_at_us"} if table.name == "lease" else set())
            same = [now.c[column.name] for column in table.c if column.name not in lost]
            found = connection.execute(select(*same)).mappings().all()
            assert found == [{name: row[name] for name in row if name not in lost} for row in rows], table.name
    registry = SqlRegistry(database)
    owned = registry.assign_source(SourceKey("tenant 2", "source 2"), GatewayRun("gw", "run"), "agent")
    assert owned == Assignment(3, needs_fence=True)
    database.close()


def _row(table: Table, number: int) -> dict[str, object]:
    """Each number, text or document of a row says which row it is of; so do its references."""
    kinds: list[tuple[type, object]] = [
        (Boolean, number == 1),
        (Integer, number),
        (Float, number / 2),
        (JSON, {"row": number}),
    ]
    return {
        column.name: next((value for kind, value in kinds if isinstance(column.type, kind)), f"{column.name} {number}")
        for column in table.c
    }


def test_migrations_when_printed_as_sql_then_connect_nowhere(capsys: pytest.CaptureFixture[str]):
    command.upgrade(alembic_config(), "head", sql=True)
    printed = capsys.readouterr().out
    assert all(f"CREATE TABLE {name} " in printed for name in Base.metadata.tables)


def test_migration_when_it_fails_then_nothing_of_it_stays(empty_url: str, monkeypatch: pytest.MonkeyPatch):
    database = _open_without_upgrade(empty_url, monkeypatch)
    with pytest.raises(ZeroDivisionError), database.write() as connection:
        upgrade(connection)
        raise ZeroDivisionError
    with database.read() as connection:
        assert inspect(connection).get_table_names() == []
    database.close()


def test_open_database_when_many_open_it_at_once_then_all_succeed(empty_url: str):
    opened: list[Database] = []
    threads = [threading.Thread(target=lambda: opened.append(open_database(empty_url))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 6
    for database in opened:
        database.close()


def test_open_database_when_revision_is_unknown_then_says_too_new_and_leaves_it(database: Database, database_url: str):
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(DatabaseTooNew, match="9999"):
        open_database(database_url)


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        ("mysql://root@localhost/menura", DatabaseUnsupported, "begins with mysql"),
        ("sqlite://", DatabaseUnsupported, "in memory"),
        ("nonsense", DatabaseUnsupported, "can't be read"),
        ("sqlite:////nowhere/at/all/control.db", DatabaseUnavailable, "unable to open"),
        ("postgresql://menura:secret-word@127.0.0.1:1/menura", DatabaseUnavailable, "127.0.0.1"),
    ],
)
def test_open_database_when_url_is_bad_then_error_names_it_without_password(url: str, error: type, words: str):
    with pytest.raises(error) as raised:
        open_database(url)
    assert words in str(raised.value)
    assert "secret-word" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_write_when_it_fails_then_nothing_is_kept(database: Database):
    with pytest.raises(ZeroDivisionError), database.write() as connection:
        connection.execute(text("INSERT INTO landing (url, applied_entry) VALUES ('x', 1)"))
        raise ZeroDivisionError
    with database.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM landing")).scalar() == 0


def test_sqlite_when_opened_then_uses_wal_and_foreign_keys(tmp_path: Path):
    database = open_database(f"sqlite:///{tmp_path}/control.db")
    with database.read() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    database.close()
