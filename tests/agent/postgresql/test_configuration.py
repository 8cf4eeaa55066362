"""A PostgreSQL source in the configuration file: what is read, and one line for each mistake."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config_entries import Entry
from agent.errors import ConfigError
from agent.filter import Filter
from agent.settings import SourceConfig
from agent.sources.postgresql.config import KEYS, PostgresqlConfig, ServerConfig, TlsMode, configure
from tests.agent.postgresql.entries import entry_of

GOOD = """
client: {host: standby, user: reader, password: "s3cret", database: shop, port: 6432, tls: {mode: require}}
replication: {host: primary, user: menura, password_env: PGPW, database: shop}
slot: menura_shop
publication: Odd Name
max_streamed_bytes: 1073741824
"""


def configured(folder: Path, text: str) -> PostgresqlConfig:
    entry: Entry = entry_of(folder, text)
    return configure(SourceConfig(name="shop", kind="postgresql", filter=Filter()), entry, entry.mapping(KEYS))


def test_source_when_its_entries_are_good_then_holds_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPW", "other s3cret")
    config = configured(tmp_path, GOOD)
    assert (config.client.address, config.client.user, config.client.tls.mode) == (
        "standby:6432",
        "reader",
        TlsMode.REQUIRE,
    )
    assert (config.replication.host, config.replication.port, config.replication.tls.mode) == (
        "primary",
        5432,
        TlsMode.VERIFY_FULL,
    )
    assert config.replication.password.reveal() == "other s3cret"
    assert (config.slot_of("acme", "db-1"), config.publication, config.address) == (
        "menura_shop",
        "Odd Name",
        "primary:5432/shop",
    )
    assert config.max_streamed_bytes == 1 << 30
    assert (config.client.section, config.replication.section) == ("client", "replication")
    assert "s3cret" not in repr(config)


def test_source_when_it_names_one_server_then_that_is_for_all(tmp_path: Path) -> None:
    config = configured(tmp_path, "client: {host: '::1', user: menura, database: shop}")
    assert config.replication == config.client
    assert config.address == "[::1]:5432/shop"
    assert (config.publication, config.client.password.reveal()) == ("menura", "")
    assert config.max_streamed_bytes == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("slot: a", "lacks client"),
        ("client: {user: menura, database: shop}", "lacks host"),
        ("client: {host: db, database: shop}", "lacks user"),
        ("client: {host: db, user: menura}", "lacks database"),
        ("client: {host: db, user: menura, database: shop, port: 0}", "port is not a whole number"),
        ("client: {host: db, user: menura, database: shop, sslmode: require}", "is not a known key"),
        ("client: {host: db, user: menura, database: shop, tls: {mode: verify_ca}}", "is not one of disable, prefer"),
        (
            "client: {host: db, user: menura, database: shop, tls: {mode: verify-ca}}",
            "has mode verify-ca and no ca",
        ),
        ("client: {host: db, user: menura, database: shop, tls: {ca: /nowhere}}", "No such file"),
        ("client: {host: db, user: menura, database: shop}\nslot: Upper", "is no name of a replication slot"),
        (f"client: {{host: db, user: menura, database: shop}}\nslot: {'a' * 64}", "is no name of a replication slot"),
        (f"client: {{host: db, user: menura, database: shop}}\npublication: {'ä' * 32}", "is no name of a publication"),
        (
            "client: {host: db, user: menura, database: shop}\nreplication: {host: db, user: menura, database: other}",
            "a source is one database",
        ),
    ],
)
def test_source_when_an_entry_is_wrong_then_one_line_says_what_and_where(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as wrong:
        configured(tmp_path, text)
    assert "line " in wrong.value.found
    assert wrong.value.remedy


def test_source_when_it_has_one_of_certificate_and_key_then_asks_for_both(tmp_path: Path) -> None:
    (tmp_path / "client.pem").write_text("x")
    text = f"client: {{host: db, user: menura, database: shop, tls: {{certificate: {tmp_path}/client.pem}}}}"
    with pytest.raises(ConfigError, match="one of certificate and key"):
        configured(tmp_path, text)


@given(st.text(max_size=80), st.text(max_size=80), st.text(max_size=80))
def test_slot_when_no_name_is_given_then_it_is_one_that_servers_take_and_stays_the_same(
    source: str, tenant: str, agent: str
) -> None:
    server = ServerConfig("db", "menura", "shop")
    config = PostgresqlConfig(name=source, kind="postgresql", filter=Filter(), client=server, replication=server)
    name = config.slot_of(tenant, agent)
    assert re.fullmatch("[a-z0-9_]{1,63}", name)
    assert name == config.slot_of(tenant, agent)
    assert name != config.slot_of(tenant, agent + "x")
