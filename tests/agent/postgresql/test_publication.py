"""Which tables' changes the server sends, what the agent does for it, and what it tells others to do."""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.errors import TableError
from agent.filter import Filter
from agent.sources.postgresql.config import PostgresqlConfig
from agent.sources.postgresql.errors import TableIdentityMissing, TableUnpublished
from agent.sources.postgresql.identifiers import IDENTIFIERS
from agent.sources.postgresql.server import publication_state
from agent.sources.postgresql.server.connection import Connection, connect, server_errors
from agent.sources.postgresql.server.made_lists import MadeLists
from agent.sources.postgresql.server.publication import ensure_published
from agent.sources.postgresql.server.publication_state import look
from agent.table_positions import Table
from tests.agent.postgresql.sources import SOURCE, config_of
from tests.postgres import SourceServer
from tests.remedies import commands

T = ("public", "t")
#: the agent makes no list here
NOWHERE = Path("/nowhere")
#: what the owner of tables lets the agent do for itself
OWNS = "GRANT postgres TO menura"


def ensured(config: PostgresqlConfig, *tables: Table) -> dict[Table, TableError]:
    server = config.replication
    with closing(connect(server, SOURCE)) as connection, server_errors("publishing", server, SOURCE):
        return dict(ensure_published(connection, config, MadeLists(NOWHERE, SOURCE), tables).errors)


def published(running: SourceServer) -> set[tuple[object, ...]]:
    return set(running.run("SELECT schemaname::text, tablename::text FROM pg_publication_tables", database="shop"))


def statements(error: TableError) -> list[str]:
    """What the message says is to be run on the server."""
    listed = error.remedy.partition(": ")[2].partition("; then run: ")[0]
    return [one for one in listed.split("; ") if re.match("[A-Z]{3}", one)]


@contextmanager
def owned_by_role(running: SourceServer) -> Iterator[SourceServer]:
    """The agent's user may do what the owner of tables and database may."""
    running.run("CREATE ROLE owner", "GRANT owner TO menura", "ALTER DATABASE shop OWNER TO owner")
    running.run("GRANT ALL ON SCHEMA public TO owner", database="shop")
    yield running
    running.run("ALTER DATABASE shop OWNER TO postgres")
    running.run("DROP OWNED BY owner", database="shop")
    running.run("DROP ROLE owner")


@pytest.fixture
def owning(postgres: SourceServer) -> Iterator[SourceServer]:
    with owned_by_role(postgres) as running:
        yield running


@pytest.fixture
def owning_newest(newest: SourceServer) -> Iterator[SourceServer]:
    """It publishes generated columns, as servers from version 18 on do."""
    newest.renew_database()
    with owned_by_role(newest) as running:
        yield running


def owned(running: SourceServer, *statements: str) -> None:
    running.run("SET ROLE owner", *statements, database="shop")


def test_publication_when_the_user_owns_the_tables_then_it_is_made_and_has_them(owning: SourceServer) -> None:
    owned(owning, "CREATE TABLE t (id int PRIMARY KEY)", 'CREATE TABLE "Odd ""T" (id int PRIMARY KEY)')
    config = config_of(owning)
    assert ensured(config, T) == {}
    assert published(owning) == {T}
    assert owning.run("SELECT pubviaroot FROM pg_publication", database="shop") == [(True,)]
    odd = ("public", 'Odd "T')
    assert ensured(config, T, odd) == {}
    assert ensured(config, T, odd) == {}
    assert published(owning) == {T, odd}


def test_publication_when_the_user_may_not_make_it_then_the_statements_of_the_message_do(
    postgres: SourceServer,
) -> None:
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)", database="shop")
    config = config_of(postgres)
    error = ensured(config, T)[T]
    assert isinstance(error, TableUnpublished)
    assert commands(error.remedy) == [["sync", "retry", "shop", "public.t"]]
    assert len(statements(error)) == 2
    postgres.run(*statements(error), database="shop")
    assert ensured(config, T) == {}
    postgres.run("CREATE TABLE u (id int PRIMARY KEY)", database="shop")
    error = ensured(config, T, ("public", "u"))["public", "u"]
    assert statements(error) == ['ALTER PUBLICATION "menura" ADD TABLE ONLY "public"."u"']
    postgres.run(*statements(error), database="shop")
    assert ensured(config, T, ("public", "u")) == {}


def test_publication_when_only_one_of_the_tables_is_the_users_then_only_that_is_added(owning: SourceServer) -> None:
    owned(owning, "CREATE TABLE t (id int PRIMARY KEY)")
    owning.run("CREATE TABLE others (id int PRIMARY KEY)", database="shop")
    errors = ensured(config_of(owning), T, ("public", "others"), ("public", "nowhere"))
    assert set(errors) == {("public", "others")}
    assert published(owning) == {T}


@pytest.mark.parametrize(
    "definition",
    [
        "CREATE TABLE t (id int)",
        "CREATE TABLE t (id int UNIQUE)",
        "CREATE TABLE t (id int PRIMARY KEY DEFERRABLE)",
        "CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY NOTHING",
        "CREATE TABLE t (id int NOT NULL, CONSTRAINT u UNIQUE (id)); ALTER TABLE t REPLICA IDENTITY USING INDEX u;"
        " ALTER TABLE t DROP CONSTRAINT u",
    ],
)
def test_table_when_nothing_identifies_its_rows_then_it_is_not_added_and_its_owner_can_still_change_it(
    owning: SourceServer, definition: str
) -> None:
    owned(owning, definition)
    config = config_of(owning)
    error = ensured(config, T)[T]
    assert isinstance(error, TableIdentityMissing) and error.code == "TABLE_IDENTITY_MISSING"
    assert published(owning) == set()
    owned(owning, "INSERT INTO t VALUES (1)", "UPDATE t SET id = 2", "DELETE FROM t")
    assert statements(error) == ['ALTER TABLE "public"."t" REPLICA IDENTITY FULL']
    owned(owning, *statements(error))
    assert ensured(config, T) == {}
    owned(owning, "INSERT INTO t VALUES (1)", "UPDATE t SET id = 2", "DELETE FROM t")


@pytest.mark.parametrize(
    "definition",
    [
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE t (id int); ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE TABLE t (id int NOT NULL, CONSTRAINT u UNIQUE (id)); ALTER TABLE t REPLICA IDENTITY USING INDEX u",
    ],
)
def test_table_when_something_identifies_its_rows_then_it_is_added(owning: SourceServer, definition: str) -> None:
    owned(owning, definition)
    assert ensured(config_of(owning), T) == {}
    owned(owning, "INSERT INTO t VALUES (1)", "UPDATE t SET id = 2", "DELETE FROM t")


def test_table_when_others_inherit_from_it_then_these_are_not_added(owning: SourceServer) -> None:
    owned(owning, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE child () INHERITS (t)")
    assert ensured(config_of(owning), T) == {}
    assert published(owning) == {T}
    owned(owning, "INSERT INTO child VALUES (1)", "DELETE FROM child")


def test_partitioned_table_when_a_partition_has_no_identity_then_the_message_names_it(owning: SourceServer) -> None:
    owned(
        owning,
        "CREATE TABLE t (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high PARTITION OF t FOR VALUES FROM (10) TO (20)",
        "ALTER TABLE high REPLICA IDENTITY FULL",
    )
    config = config_of(owning)
    error = ensured(config, T)[T]
    assert isinstance(error, TableIdentityMissing) and error.code == "TABLE_IDENTITY_MISSING"
    assert statements(error) == ['ALTER TABLE "public"."low" REPLICA IDENTITY FULL']
    owned(owning, *statements(error))
    assert ensured(config, T) == {}
    assert published(owning) == {T}
    owned(owning, "INSERT INTO t VALUES (1), (11)", "UPDATE t SET id = id + 1", "DELETE FROM t")
    part = ensured(config, ("public", "low"))["public", "low"]
    assert commands(part.remedy) == [["sync", "start", "shop", "public.t", "--from", "dump"]]


def test_partitioned_table_when_the_publication_has_only_its_partitions_then_the_statement_of_the_message_mends_it(
    postgres: SourceServer,
) -> None:
    postgres.run(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "CREATE PUBLICATION menura FOR TABLE t",
        database="shop",
    )
    config = config_of(postgres)
    assert ensured(config, ("public", "low")) == {}
    postgres.run(*statements(ensured(config, T)[T]), database="shop")
    assert ensured(config, T) == {}


def skip_without_lists(running: SourceServer) -> None:
    if running.version < 150000:
        pytest.skip("publications of rows and columns are there from version 15 on")


@pytest.mark.parametrize("publication", ["FOR TABLE t WHERE (id > 1)", "FOR TABLE t (id)"])
def test_publication_when_it_leaves_out_rows_or_columns_then_the_statements_of_the_message_mend_it(
    postgres: SourceServer, publication: str
) -> None:
    skip_without_lists(postgres)
    postgres.run(
        "CREATE TABLE t (id int PRIMARY KEY, x text, y int GENERATED ALWAYS AS (id) STORED)",
        f"CREATE PUBLICATION menura {publication}",
        database="shop",
    )
    config = config_of(postgres)
    error = ensured(config, T)[T]
    assert isinstance(error, TableUnpublished)
    postgres.run(*statements(error), database="shop")
    assert ensured(config, T) == {}


def test_publication_when_it_leaves_out_columns_that_the_filter_ignores_then_it_does(postgres: SourceServer) -> None:
    skip_without_lists(postgres)
    postgres.run(
        "CREATE TABLE t (id int PRIMARY KEY, x text)", "CREATE PUBLICATION menura FOR TABLE t (id)", database="shop"
    )
    policy = Filter(rules={"public.t": ("x",)}, identifiers=IDENTIFIERS)
    assert ensured(config_of(postgres, policy=policy), T) == {}


def test_publication_when_a_column_goes_during_the_look_then_it_is_not_said_to_be_left_out(
    owning: SourceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned(owning, "CREATE TABLE t (id int PRIMARY KEY, at int)")
    config = config_of(owning)
    assert ensured(config, T) == {}
    original = publication_state.rows

    def altered_between(connection: Connection, statement: str, **values: object) -> list[list[Any]]:
        if "pg_publication_tables" in statement:
            owned(owning, "ALTER TABLE t DROP COLUMN IF EXISTS at")
        return original(connection, statement, **values)

    monkeypatch.setattr(publication_state, "rows", altered_between)
    assert ensured(config, T) == {}


def test_publication_when_it_leaves_out_kinds_of_changes_then_the_statement_of_the_message_mends_it(
    postgres: SourceServer,
) -> None:
    postgres.run(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE PUBLICATION menura FOR ALL TABLES WITH (publish = 'insert, update')",
        database="shop",
    )
    config = config_of(postgres)
    error = ensured(config, T)[T]
    assert "delete, truncate" in error.found
    postgres.run(*statements(error), database="shop")
    assert ensured(config, T) == {}


def test_table_when_unlogged_then_the_statement_of_the_message_has_it_logged(owning: SourceServer) -> None:
    owned(owning, "CREATE UNLOGGED TABLE t (id int PRIMARY KEY)")
    config = config_of(owning)
    owned(owning, *statements(ensured(config, T)[T]))
    assert ensured(config, T) == {}


def test_look_when_it_is_taken_then_nothing_is_changed(owning: SourceServer) -> None:
    owned(owning, "CREATE TABLE t (id int PRIMARY KEY)")
    with closing(connect(config_of(owning).replication, SOURCE)) as connection:
        assert look(connection, config_of(owning), [T]).addable() == [T]
    assert owning.run("SELECT 1 FROM pg_publication", database="shop") == []


@pytest.mark.parametrize("kind", ["STORED", "VIRTUAL"])
def test_table_when_generated_columns_identify_its_rows_then_its_owner_can_still_change_it(
    owning_newest: SourceServer, kind: str
) -> None:
    definition = f"id int, v int GENERATED ALWAYS AS (id * 2) {kind}"
    owned(
        owning_newest,
        f"CREATE TABLE t ({definition})",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        f"CREATE TABLE u ({definition}, PRIMARY KEY (id))",
        "CREATE PUBLICATION others",
    )
    by_others = replace(config_of(owning_newest), publication="others")
    change = ("INSERT INTO t VALUES (1)", "UPDATE t SET id = 2", "DELETE FROM t")
    error = ensured(by_others, T)[T]
    assert isinstance(error, TableIdentityMissing)
    owned(owning_newest, *change)
    if kind == "STORED":
        owned(owning_newest, *statements(error))
        assert ensured(by_others, T) == {}
        owned(owning_newest, *change)
        assert ensured(config_of(owning_newest), T) == {}
    else:
        owned(owning_newest, "ALTER TABLE t ADD PRIMARY KEY (id)", *statements(error))
        assert ensured(by_others, T) == {}
    owned(owning_newest, *change)


def test_generated_columns_when_published_then_a_row_identity_that_comes_to_have_them_does_no_harm(
    owning_newest: SourceServer,
) -> None:
    owned(owning_newest, "CREATE TABLE t (id int PRIMARY KEY, v int GENERATED ALWAYS AS (id * 2) STORED)")
    assert ensured(config_of(owning_newest), T) == {}
    owned(owning_newest, "ALTER TABLE t REPLICA IDENTITY FULL", "INSERT INTO t VALUES (1)", "UPDATE t SET id = 2")
