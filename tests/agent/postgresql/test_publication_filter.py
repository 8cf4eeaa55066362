"""What a publication leaves out by the filter, and what the server lets others do with its tables meanwhile."""

from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest

from agent.filter import Filter, Policy
from agent.sources.postgresql.config import FilteredBy, PostgresqlConfig
from agent.sources.postgresql.identifiers import IDENTIFIERS
from agent.sources.postgresql.server.checks import advice
from agent.sources.postgresql.server.connection import connect, rows, server_errors
from agent.sources.postgresql.server.made_lists import MadeLists
from agent.sources.postgresql.server.publication import ensure_published
from agent.sources.postgresql.server.publication_filter import add_tables, removal, without_lists
from agent.sources.postgresql.server.publication_state import look
from agent.table_positions import Table
from agent.unlogged import UnloggedChanges, UnloggedPolicy
from tests.agent.postgresql.sources import SOURCE, config_of
from tests.postgres import NEWEST, SourceServer

T = ("public", "t")
SECRET = "s3cret"


@pytest.fixture
def server(postgres: SourceServer) -> Iterator[SourceServer]:
    """The agent's user may do what the owner of the tables may."""
    if postgres.version < 150000:
        pytest.skip("publications have column lists from version 15 on")
    postgres.run("GRANT postgres TO menura")
    yield postgres
    postgres.run("REVOKE postgres FROM menura")


def config(server: SourceServer, *ignored: str, **rules: tuple[str, ...] | None) -> PostgresqlConfig:
    listed = {"t": ignored or ("secret",), **rules}
    return config_of(server, policy=Filter(rules=listed, identifiers=IDENTIFIERS), filtered_by=FilteredBy.SERVER)


def ensured(config: PostgresqlConfig, *tables: Table, state: Path | None = None) -> frozenset[Table]:
    """The tables whose publication could not be changed; each is published whole otherwise."""
    server = config.replication
    with (
        TemporaryDirectory() as folder,
        closing(connect(server, SOURCE)) as connection,
        server_errors("publishing", server, SOURCE),
    ):
        made = MadeLists(state or Path(folder), SOURCE)
        found = ensure_published(connection, config, made, tables or (T,))
    assert not found.errors
    return found.later


def run(server: SourceServer, *statements: str) -> list[tuple[object, ...]]:
    return server.run(*statements, database="shop")


def listed(server: SourceServer, table: str = "t") -> Collection[str] | None:
    """None: it has no list."""
    found = run(
        server,
        "SELECT (SELECT array_agg(attname::text ORDER BY attnum) FROM pg_attribute"
        " WHERE attrelid = prrelid AND attnum = ANY (prattrs))"
        f" FROM pg_publication_rel WHERE prrelid = '{table}'::regclass",
    )
    return found[0][0]  # type: ignore[return-value]


def members(server: SourceServer) -> set[str]:
    return {str(name) for (name,) in run(server, "SELECT tablename::text FROM pg_publication_tables")}


def test_ignored_columns_when_the_server_filters_then_its_process_does_not_send_them(server: SourceServer) -> None:
    run(server, "CREATE TABLE t (id int PRIMARY KEY, a text, secret text)")
    ensured(config(server))
    assert listed(server) == ["id", "a"]
    run(server, "SELECT pg_create_logical_replication_slot('menura_test', 'pgoutput')")
    run(server, f"INSERT INTO t VALUES (1, 'shown', '{SECRET}')", f"UPDATE t SET secret = '{SECRET}'", "DELETE FROM t")
    sent = run(
        server,
        "SELECT data FROM pg_logical_slot_peek_binary_changes('menura_test', NULL, NULL, 'proto_version', '1',"
        " 'publication_names', 'menura')",
    )
    whole = b"".join(bytes(data) for (data,) in sent)
    assert b"shown" in whole
    assert SECRET.encode() not in whole
    assert b"secret" not in whole


def test_list_when_the_agent_filters_then_there_is_none(server: SourceServer) -> None:
    run(server, "CREATE TABLE t (id int PRIMARY KEY, secret text)")
    ensured(replace(config(server), filtered_by=FilteredBy.AGENT))
    assert listed(server) is None


@pytest.mark.parametrize(
    ("change", "after"),
    [
        ("ALTER TABLE t ADD COLUMN b int DEFAULT 5", ["id", "a", "b"]),
        ("ALTER TABLE t RENAME a TO b", ["id", "b"]),
        ("ALTER TABLE t DROP COLUMN a CASCADE", ["id"]),
        ("ALTER TABLE t DROP COLUMN a CASCADE, ADD COLUMN a bigint", ["id", "a"]),
        ("ALTER TABLE t DROP COLUMN secret, ADD COLUMN secret int", ["id", "a"]),
        ("ALTER TABLE t RENAME secret TO shown", None),
        ("ALTER TABLE t DROP COLUMN secret", None),
        ("ALTER TABLE t ADD COLUMN c int GENERATED ALWAYS AS (id) STORED", ["id", "a"]),
        ("ALTER TABLE t REPLICA IDENTITY FULL", None),
        ("ALTER TABLE t ADD COLUMN k int NOT NULL DEFAULT 1, DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (k, id)",
         ["id", "a", "k"]),
        ("ALTER TABLE t ALTER secret SET NOT NULL, DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (secret)", None),
    ],
)  # fmt: skip
def test_list_when_the_table_has_changed_then_the_next_look_has_it_in_line_and_rows_can_be_changed(
    server: SourceServer, change: str, after: list[str] | None
) -> None:
    run(server, "CREATE TABLE t (id int PRIMARY KEY, a text, secret text)", "INSERT INTO t VALUES (1, 'x', 'y')")
    ensured(config(server))
    run(server, change)
    assert ensured(config(server)) == frozenset()
    assert listed(server) == after
    run(server, "UPDATE t SET id = id + 1", "DELETE FROM t")


def test_list_when_the_filter_has_changed_then_it_follows(server: SourceServer) -> None:
    run(server, "CREATE TABLE t (id int PRIMARY KEY, a text, secret text)")
    for ignored, after in ((("secret",), ["id", "a"]), (("a", "secret"), ["id"]), (("a",), ["id", "secret"])):
        ensured(config(server, *ignored))
        assert listed(server) == after
    ensured(replace(config(server), unlogged=UnloggedPolicy(UnloggedChanges.STOP)))
    assert listed(server) is None


def test_table_when_the_filter_drops_it_then_it_leaves_the_publication(server: SourceServer) -> None:
    run(server, *(f"CREATE TABLE {name} (id int PRIMARY KEY, secret text)" for name in ("t", "u", "v")))
    ensured(config(server), T, ("public", "u"), ("public", "v"))
    assert members(server) == {"t", "u", "v"}
    ensured(config(server, u=None))
    assert members(server) == {"t", "v"}
    only = Filter(Policy.DROP, {"v": None}, identifiers=IDENTIFIERS)
    ensured(replace(config(server), filter=only), ("public", "v"))
    assert members(server) == {"v"}


def test_partitioned_table_when_it_has_ignored_columns_then_its_list_is_by_name_and_lacks_where_a_partition_is_full(
    server: SourceServer,
) -> None:
    run(
        server,
        "CREATE TABLE t (id int PRIMARY KEY, a text, secret text) PARTITION BY RANGE (id)",
        "CREATE TABLE low (secret text, a text, id int NOT NULL)",
        "ALTER TABLE t ATTACH PARTITION low FOR VALUES FROM (0) TO (10)",
    )
    ensured(config(server))
    assert listed(server) == ["id", "a"]
    run(server, "INSERT INTO t VALUES (1, 'x', 'y')", "UPDATE t SET id = 2", "DELETE FROM t")
    run(server, "ALTER TABLE low REPLICA IDENTITY FULL")
    ensured(config(server))
    assert listed(server) is None
    run(server, "INSERT INTO t VALUES (1, 'x', 'y')", "UPDATE t SET id = 2", "DELETE FROM t")


def test_list_when_somebody_alters_the_table_then_it_waits_and_the_table_is_no_error(
    server: SourceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(server, "CREATE TABLE t (id int PRIMARY KEY, a text, secret text)")
    ensured(config(server))
    run(server, "ALTER TABLE t ADD COLUMN b int")
    with server.connect("shop", autocommit=False) as busy:
        busy.execute("LOCK TABLE t IN SHARE UPDATE EXCLUSIVE MODE")
        assert ensured(config(server)) == {T}
    assert listed(server) == ["id", "a"]
    assert ensured(config(server)) == frozenset()
    assert listed(server) == ["id", "a", "b"]


def test_list_when_nobody_reads_the_publication_any_more_then_it_binds_nobody(server: SourceServer) -> None:
    run(server, *(f"CREATE TABLE {name} (id int PRIMARY KEY, a text, secret text)" for name in ("t", "u")))
    settings = config(server)
    ensured(settings, T, ("public", "u"))
    with pytest.raises(psycopg.errors.DependentObjectsStillExist):
        run(server, "ALTER TABLE t DROP COLUMN a")
    with closing(connect(settings.replication, SOURCE)) as connection:
        without_lists(connection, settings)
    run(server, "ALTER TABLE t DROP COLUMN a")
    assert members(server) == {"u"}


@pytest.mark.needs_setup
@pytest.mark.parametrize("release", ["", NEWEST])
def test_lists_when_the_agent_filters_again_then_those_that_it_has_made_go_and_others_stay(
    release: str, request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also by an agent that has begun again, and of tables that are not synced; what is rolled back leaves nothing."""
    server: SourceServer = request.getfixturevalue("newest" if release else "server")
    if release:
        server.renew_database()
        run(server, "GRANT postgres TO menura")
    run(server, *(f"CREATE TABLE {name} (id int PRIMARY KEY, a text, secret text)" for name in ("t", "u", "v", "w")))
    t, u, v, w = (("public", name) for name in ("t", "u", "v", "w"))
    ours = config(server, u=("secret",), v=("secret",), w=("secret",))
    ensured(ours, t, u, v, state=tmp_path)
    run(server, "ALTER PUBLICATION menura DROP TABLE v", "ALTER PUBLICATION menura ADD TABLE v (id, a), w (id, a)")
    rolled_back(ours, t, tmp_path)
    theirs = replace(ours, filtered_by=FilteredBy.AGENT)
    ensured(theirs, t, v, w, state=tmp_path)
    assert [listed(server, name) for name in ("t", "u", "v", "w")] == [None, None, ["id", "a"], ["id", "a"]]
    assert "they stay" in caplog.text
    assert MadeLists(tmp_path, SOURCE).numbers == frozenset()
    run(server, "ALTER TABLE t DROP COLUMN a", "UPDATE t SET id = 1")


def rolled_back(config: PostgresqlConfig, table: Table, folder: Path) -> None:
    """The agent is killed between the making of a list and its commit."""
    with closing(connect(config.replication, SOURCE)) as connection:
        made = MadeLists(folder, SOURCE)
        rows(connection, "BEGIN READ WRITE")
        state = look(connection, config, [table], made.numbers)
        rows(connection, removal(config, state.relations[table]))
        add_tables(connection, config, made, look(connection, config, [table]), [table])
        assert MadeLists(folder, SOURCE).numbers == made.numbers != frozenset()
        rows(connection, "ROLLBACK")


def test_lists_when_what_was_made_can_not_be_read_then_they_stay(server: SourceServer, tmp_path: Path) -> None:
    run(server, "CREATE TABLE t (id int PRIMARY KEY, secret text)")
    ensured(config(server), state=tmp_path)
    (tmp_path / f"{SOURCE}.lists.json").write_text('{"format": 2, "lists": []}')
    ensured(replace(config(server), filtered_by=FilteredBy.AGENT), state=tmp_path)
    assert listed(server) == ["id"]


@pytest.mark.parametrize("rule", ["secret", "table"])
def test_advice_when_the_publication_is_somebody_elses_then_its_statements_have_it_filtered(
    postgres: SourceServer, rule: str
) -> None:
    if postgres.version < 150000:
        pytest.skip("publications have column lists from version 15 on")
    run(
        postgres,
        "CREATE TABLE t (id int PRIMARY KEY, secret text)",
        "CREATE TABLE u (id int PRIMARY KEY)",
        "CREATE PUBLICATION menura FOR TABLE t, u",
    )
    rules = {"t": ("secret",)} if rule == "secret" else {"u": None}
    policy = Filter(rules=rules, identifiers=IDENTIFIERS)
    settings = config_of(postgres, policy=policy, filtered_by=FilteredBy.SERVER)
    (found,) = advice(settings)
    assert found.code == "PUBLICATION_UNFILTERED"
    run(postgres, *found.remedy.partition(": ")[2].split("; "))
    assert advice(settings) == []
    assert members(postgres) == ({"t", "u"} if rule == "secret" else {"t"})


def test_advice_when_the_server_can_not_leave_columns_out_then_it_says_why(postgres: SourceServer) -> None:
    run(
        postgres,
        "CREATE TABLE t (id int, secret text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE PUBLICATION menura FOR TABLE t",
    )
    policy = Filter(rules={"t": ("secret",)}, identifiers=IDENTIFIERS)
    (found,) = advice(config_of(postgres, policy=policy, filtered_by=FilteredBy.SERVER))
    assert found.code == "PUBLICATION_UNFILTERED"
    assert ("FULL" if postgres.version >= 150000 else "version 15") in found.found
    assert advice(config_of(postgres, policy=policy)) == []
    assert "Drop these tables" in found.remedy
    dropped = Filter(rules={"t": None}, identifiers=IDENTIFIERS)
    settings = config_of(postgres, policy=dropped, filtered_by=FilteredBy.SERVER)
    (found,) = advice(settings)
    run(postgres, *found.remedy.partition(": ")[2].split("; "))
    assert advice(settings) == []
