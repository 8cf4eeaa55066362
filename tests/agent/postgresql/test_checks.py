"""What `menura agent check` finds at a server before anything is read: each with the statement that mends it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from menura.errors import MenuraError

from agent.errors import (
    FilterColumnIsKey,
    FilterColumnUnknown,
    FilterTableUnknown,
    SourceAccessDenied,
    SourceFailed,
    SourceGrantMissing,
    SourceVersionUnsupported,
)
from agent.filter import Filter, Policy
from agent.sources.postgresql.config import PostgresqlConfig
from agent.sources.postgresql.errors import (
    PublicationLacking,
    SlotForeign,
    SlotsExhausted,
    TablesUnidentified,
    WalLevelNotLogical,
)
from agent.sources.postgresql.identifiers import IDENTIFIERS
from agent.sources.postgresql.server.checks import advice, check_client, check_replication
from agent.sources.postgresql.server.slot import create_slot
from tests.agent.postgresql.sources import PASSWORD, SOURCE, config_of, login, source
from tests.agent.running import agent, write_config
from tests.postgres import SourceServer, source_server, standby_of
from tests.stack import wait_for

SLOT = "menura_test"


def mended(running: SourceServer, finding: MenuraError) -> None:
    """By what the message says is to be run on the server."""
    listed = finding.remedy.partition(": ")[2].partition("; or ")[0]
    running.run(*listed.split("; "), database="shop")


@pytest.fixture
def outsider(postgres: SourceServer) -> Iterator[PostgresqlConfig]:
    """A user without any privilege."""
    postgres.run(f"CREATE ROLE outsider LOGIN REPLICATION PASSWORD '{PASSWORD}'")
    server = login(postgres, "outsider")
    config = config_of(postgres, client=server)
    yield config
    postgres.run("DROP OWNED BY outsider", database="shop")
    postgres.run("DROP OWNED BY outsider", "DROP ROLE outsider")


def test_command_when_tables_can_not_be_synced_then_says_so_and_the_source_is_read(
    postgres: SourceServer, tmp_path: Path
) -> None:
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE keyless (id int)", database="shop")
    entries = source(postgres, filter={"nowhere": None})
    ended = agent("check", write_config(tmp_path, "127.0.0.1:1", {"shop": entries}))
    ok, *warnings = ended.stdout.splitlines()
    assert ok.startswith("shop: ok, client 127.0.0.1:")
    assert "slot to come, WAL kept for it without a bound" in ok
    codes = [warning.removeprefix("shop: warning: ").partition(":")[0] for warning in warnings]
    assert codes == ["FILTER_TABLE_UNKNOWN", "TABLES_UNIDENTIFIED", "PUBLICATION_LACKING"]
    assert (ended.returncode, "secret" in ended.stdout + ended.stderr) == (0, False)


def test_command_when_the_server_is_not_set_up_then_its_exit_code_is_that_of_the_error(tmp_path: Path) -> None:
    with source_server(wal_level="replica") as running:
        running.create_replication_user()
        ended = agent("check", write_config(tmp_path, "127.0.0.1:1", {"shop": source(running)}))
    assert ended.stdout.startswith("shop: WAL_LEVEL_NOT_LOGICAL: ")
    assert ended.returncode == WalLevelNotLogical.exit_code


def test_client_when_it_may_read_then_nothing_is_found(postgres: SourceServer) -> None:
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION menura FOR TABLE t", database="shop")
    config = config_of(postgres)
    facts, findings = check_client(config)
    assert (facts.encoding, facts.is_standby, findings) == ("UTF8", False, [])
    assert advice(config) == []


def test_client_when_there_is_no_table_then_nothing_is_found(postgres: SourceServer) -> None:
    assert check_client(config_of(postgres))[1] == []


def test_client_when_it_may_read_nothing_then_the_error_says_so(
    postgres: SourceServer, outsider: PostgresqlConfig
) -> None:
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)", database="shop")
    with pytest.raises(SourceGrantMissing, match="may read none of 1 tables"):
        check_client(outsider)


def test_advice_when_privileges_lack_then_its_statements_give_them(
    postgres: SourceServer, outsider: PostgresqlConfig
) -> None:
    postgres.run(
        'CREATE SCHEMA "Odd"',
        'CREATE TABLE "Odd"."T" (id int PRIMARY KEY)',
        "CREATE TABLE t (id int PRIMARY KEY, secret text)",
        "GRANT SELECT (id) ON t TO outsider",
        'CREATE PUBLICATION menura FOR TABLE t, "Odd"."T"',
        database="shop",
    )
    (found,) = advice(outsider)
    assert isinstance(found, SourceGrantMissing)
    assert 'GRANT USAGE ON SCHEMA "Odd" TO "outsider"' in found.remedy
    mended(postgres, found)
    assert advice(outsider) == []


def test_advice_when_columns_lack_that_the_filter_ignores_then_nothing_is_found(
    postgres: SourceServer, outsider: PostgresqlConfig
) -> None:
    postgres.run(
        "CREATE TABLE t (id int PRIMARY KEY, secret text)",
        "CREATE TABLE dropped (id int PRIMARY KEY)",
        "GRANT SELECT (id) ON t TO outsider",
        "CREATE PUBLICATION menura FOR TABLE t",
        database="shop",
    )
    policy = Filter(rules={"public.t": ("secret",), "dropped": None}, identifiers=IDENTIFIERS)
    assert advice(config_of(postgres, client=outsider.client, policy=policy)) == []


def test_advice_when_many_tables_lack_then_the_statements_are_of_their_schemas(
    postgres: SourceServer, outsider: PostgresqlConfig
) -> None:
    tables = [f"CREATE TABLE t{number} (id int PRIMARY KEY)" for number in range(30)]
    postgres.run(*tables, "CREATE PUBLICATION menura FOR ALL TABLES", database="shop")
    (found,) = advice(outsider)
    assert "and 20 more tables" in found.found
    mended(postgres, found)
    assert advice(outsider) == []


def test_advice_when_policies_hide_rows_then_its_statement_shows_them(postgres: SourceServer) -> None:
    postgres.run(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "CREATE PUBLICATION menura FOR TABLE t",
        database="shop",
    )
    config = config_of(postgres)
    (found,) = advice(config)
    mended(postgres, found)
    try:
        assert advice(config) == []
    finally:
        postgres.run("ALTER ROLE menura NOBYPASSRLS")


def test_advice_when_tables_lack_identity_or_publication_then_its_statements_give_them(
    postgres: SourceServer,
) -> None:
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE keyless (id int)", database="shop")
    config = config_of(postgres)
    unidentified, lacking = advice(config)
    assert isinstance(unidentified, TablesUnidentified)
    assert isinstance(lacking, PublicationLacking)
    assert "public.keyless" in unidentified.found
    assert "public.keyless" not in lacking.found
    mended(postgres, lacking)
    mended(postgres, unidentified)
    (lacking,) = advice(config)
    assert "public.keyless" in lacking.found
    mended(postgres, lacking)
    assert advice(config) == []


def test_filter_when_its_rules_do_not_fit_then_each_is_found_and_tables_are_denied(postgres: SourceServer) -> None:
    postgres.run(
        "CREATE TABLE t (id int PRIMARY KEY, x text)",
        'CREATE TABLE u ("Id" int PRIMARY KEY, x text)',
        "CREATE TABLE v (id int NOT NULL, x text NOT NULL, CONSTRAINT by_x UNIQUE (x) INCLUDE (id))",
        "ALTER TABLE v REPLICA IDENTITY USING INDEX by_x",
        database="shop",
    )
    rules = {"public.t": ("X",), "u": ("Id",), "v": ("id",), "nowhere": None}
    config = config_of(postgres, policy=Filter(Policy.ACCEPT, rules, identifiers=IDENTIFIERS))
    _, findings = check_client(config)
    assert {type(finding) for finding in findings} == {FilterTableUnknown, FilterColumnUnknown, FilterColumnIsKey}
    assert {finding.table for finding in findings if finding.table} == {"t", "u"}
    assert not config.filter.verdict("public", "t").allowed
    assert config.filter.verdict("public", "v").allowed


def test_replication_when_all_is_well_then_says_what_is_kept(postgres: SourceServer) -> None:
    config = config_of(postgres)
    assert str(check_replication(config, SLOT)) == "slot to come, WAL kept for it without a bound"
    create_slot(config.replication, SOURCE, SLOT)
    found = check_replication(config, SLOT)
    assert found.slot is not None
    assert str(found).startswith("slot at 0/")
    wait_for("no session to stay", lambda: postgres.run("SELECT 1 FROM pg_stat_replication") == [])


def test_replication_when_its_slot_is_of_another_plugin_then_the_error_says_so(postgres: SourceServer) -> None:
    postgres.run("SELECT pg_create_physical_replication_slot('menura_test')")
    with pytest.raises(SlotForeign):
        check_replication(config_of(postgres), SLOT)


def test_replication_when_the_user_may_not_then_the_statement_of_the_message_lets_it(postgres: SourceServer) -> None:
    postgres.run("ALTER ROLE menura NOREPLICATION")
    config = config_of(postgres)
    try:
        with pytest.raises(SourceGrantMissing) as refused:
            check_replication(config, SLOT)
        postgres.run(refused.value.remedy.removeprefix("Run on the server: ").partition(";")[0])
        check_replication(config, SLOT)
    finally:
        postgres.run("ALTER ROLE menura REPLICATION")


def test_replication_when_no_line_lets_it_in_then_the_error_has_the_line(postgres: SourceServer) -> None:
    hba = postgres.folder / "data" / "pg_hba.conf"
    before = hba.read_text()
    hba.write_text(before.replace("host all all", "host other all"))
    postgres.reload()
    try:
        with pytest.raises(SourceAccessDenied, match=r"host shop menura ADDRESS scram-sha-256"):
            check_replication(config_of(postgres), SLOT)
    finally:
        hba.write_text(before)
        postgres.reload()


def test_replication_when_the_server_is_not_set_up_then_each_error_says_what_lacks() -> None:
    with source_server(wal_level="replica", max_replication_slots="1") as running:
        running.create_replication_user()
        config = config_of(running)
        with pytest.raises(WalLevelNotLogical) as wrong:
            check_replication(config, SLOT)
        assert "ALTER SYSTEM SET wal_level = 'logical'" in wrong.value.remedy
        running.stop()
        running.settings |= {"wal_level": "logical", "max_slot_wal_keep_size": "1GB"}
        running.start()
        assert check_replication(config, SLOT).keep_bytes == 1 << 30
        create_slot(config.replication, SOURCE, "another")
        with pytest.raises(SlotsExhausted):
            check_replication(config, SLOT)
        running.stop()  # a connection that was closed may hold its WAL sender a little longer; none does behind a start
        running.settings |= {"max_replication_slots": "2", "max_wal_senders": "1"}
        running.start()
        with running.connect("shop", replication="database"), pytest.raises(SourceFailed, match="max_wal_senders"):
            check_replication(config, SLOT)


def test_standby_when_its_version_gives_no_changes_then_is_good_for_dumps_alone() -> None:
    with source_server() as primary:
        primary.create_replication_user()
        primary.run("CREATE TABLE t (id int PRIMARY KEY)", database="shop")
        with standby_of(primary) as standby:
            primary.wait_for_replay(standby)
            facts, findings = check_client(config_of(primary, client=login(standby)))
            assert (facts.is_standby, findings) == (True, [])
            if facts.version < 160000:
                with pytest.raises(SourceVersionUnsupported):
                    check_replication(config_of(standby), SLOT)
