"""What messages about a PostgreSQL source say is to be done: settings and statements, taken from them word for word.

Each ends with a source that the check finds well. Statements about tables are run by `test_checks`, `test_publication`.
"""

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent.errors import SourceError
from agent.sources.postgresql.server.wire import open_wal_stream
from tests.agent.postgresql.sources import PASSWORD, SOURCE, entries, login, source
from tests.agent.running import agent, write_config
from tests.postgres import SourceServer, source_server, standby_of
from tests.servers import free_port

SETTING = re.compile(r"\bsources\.shop\.[\w.]*\w")


class Source:
    """An agent's configuration that is mended by what messages say."""

    def __init__(self, folder: Path, database: SourceServer, **others: Any) -> None:
        self.folder = folder
        self.facts: dict[str, Any] = {**source(database), **others}

    def check(self) -> str:
        return agent("check", write_config(self.folder, "127.0.0.1:1", {"shop": self.facts})).stdout

    def refused(self, code: str) -> str:
        """What `menura agent check` says."""
        said = self.check()
        assert f"shop: {code}: " in said, said
        return said

    def set(self, said: str, value: object, *last: str) -> None:
        """The setting that the message names, or another key beside it."""
        (found, *_) = SETTING.findall(said)
        *parts, key = found.removeprefix("sources.shop.").split(".")
        for name in (key, *last):
            inner = self.facts
            for part in parts:
                inner = inner[part]
            inner[name] = value

    def works(self) -> None:
        said = self.check()
        assert said.startswith("shop: ok, "), said


@pytest.fixture
def secured() -> Iterator[SourceServer]:
    with source_server(tls="hostssl") as running:
        running.create_replication_user()
        yield running


def test_tls_when_it_can_not_be_verified_then_the_setting_of_the_message_verifies_it(
    secured: SourceServer, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    shop = Source(tmp_path, secured)
    shop.facts["client"]["tls"] = {"mode": "verify-full", "ca": str(wrong)}
    shop.set(shop.refused("SOURCE_TLS_FAILED"), {"mode": "verify-ca", "ca": str(secured.folder / "client.pem")})
    said = shop.refused("SOURCE_TLS_FAILED")
    assert "{mode: verify-ca, ca: FILE}" in said
    shop.set(said, {"mode": "verify-ca", "ca": str(secured.ca)})
    shop.works()


def test_address_when_nobody_is_there_then_the_settings_of_the_message_are_those_to_correct(
    postgres: SourceServer, tmp_path: Path
) -> None:
    shop = Source(tmp_path, postgres)
    shop.facts["client"]["port"] = free_port()
    said = shop.refused("SOURCE_UNREACHABLE")
    assert "sources.shop.client.host and port" in said
    shop.set(said, postgres.host)
    shop.facts["client"]["port"] = postgres.port
    shop.works()


def test_database_when_there_is_none_then_the_setting_of_the_message_is_the_one_to_correct(
    postgres: SourceServer, tmp_path: Path
) -> None:
    shop = Source(tmp_path, postgres)
    shop.facts["client"]["database"] = "nowhere"
    shop.set(shop.refused("SOURCE_DATABASE_MISSING"), "shop")
    shop.works()


def test_login_when_it_is_refused_then_the_setting_or_the_statement_of_the_message_lets_it_in(
    postgres: SourceServer, tmp_path: Path
) -> None:
    shop = Source(tmp_path, postgres)
    shop.facts["client"]["password"] = "another"
    said = shop.refused("SOURCE_ACCESS_DENIED")
    assert "sources.shop.client.user and password" in said
    statement = re.search(r"""ALTER ROLE "\w+" LOGIN PASSWORD '\.\.\.'""", said)
    assert statement is not None
    postgres.run(statement[0].replace("...", "another"))
    shop.works()
    postgres.run(statement[0].replace("...", PASSWORD))
    shop.set(shop.refused("SOURCE_ACCESS_DENIED"), "menura")
    shop.facts["client"]["password"] = PASSWORD
    shop.works()


def test_login_when_no_line_or_no_right_lets_it_in_then_the_line_or_the_statement_of_the_message_does(
    tmp_path: Path,
) -> None:
    with source_server() as running:
        running.create_replication_user()
        hba = running.folder / "data" / "pg_hba.conf"
        hba.write_text(hba.read_text().replace("host all all 127.0.0.1/32 scram-sha-256", ""))
        running.reload()
        shop = Source(tmp_path, running)
        line = re.search(r"host \w+ \w+ ADDRESS scram-sha-256", shop.refused("SOURCE_ACCESS_DENIED"))
        assert line is not None
        hba.write_text(hba.read_text() + line[0].replace("ADDRESS", "127.0.0.1/32") + "\n")
        running.reload()
        shop.works()
        running.run("ALTER ROLE menura NOLOGIN")
        statement = re.search(r'ALTER ROLE "\w+" LOGIN', shop.refused("SOURCE_ACCESS_DENIED"))
        assert statement is not None
        running.run(statement[0])
        shop.works()


def test_slot_when_others_have_it_then_the_setting_of_the_message_is_the_one_to_change(
    postgres: SourceServer, tmp_path: Path
) -> None:
    postgres.run("SELECT pg_create_physical_replication_slot('taken')")
    shop = Source(tmp_path, postgres, slot="taken")
    shop.set(shop.refused("SLOT_FOREIGN"), "menura_test")
    shop.works()


def test_slot_when_another_session_reads_it_then_the_setting_of_the_message_is_the_one_to_change(
    postgres: SourceServer, tmp_path: Path
) -> None:
    postgres.run("CREATE PUBLICATION menura", database="shop")
    postgres.run("SELECT pg_create_logical_replication_slot('taken', 'pgoutput')", database="shop")
    server = login(postgres)
    with closing(open_wal_stream(server, SOURCE, "taken", "menura", 0)):
        with pytest.raises(SourceError) as used:
            open_wal_stream(server, SOURCE, "taken", "menura", 0)
        shop = Source(tmp_path, postgres, slot="taken")
        shop.set(str(used.value), "menura_test")
        shop.works()


def test_standby_when_it_gives_no_changes_then_the_setting_of_the_message_names_the_primary(tmp_path: Path) -> None:
    with source_server() as primary:
        primary.create_replication_user()
        with standby_of(primary) as standby:
            if standby.version >= 160000:
                pytest.skip("standbys of this version give changes")
            primary.wait_for_replay(standby)
            shop = Source(tmp_path, standby)
            shop.set(shop.refused("SOURCE_VERSION_UNSUPPORTED"), entries(login(primary)))
            shop.works()


def test_tables_when_they_can_not_be_read_then_the_setting_of_the_warning_keeps_them_back(
    postgres: SourceServer, tmp_path: Path
) -> None:
    postgres.run(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE closed (id int PRIMARY KEY)",
        "REVOKE ALL ON closed FROM menura",
        "CREATE PUBLICATION menura FOR TABLE t, closed",
        database="shop",
    )
    shop = Source(tmp_path, postgres)
    said = shop.refused("warning: SOURCE_GRANT_MISSING")
    shop.set(said, {"public.closed": None})
    assert shop.check().count("\n") == 1
    shop.works()
