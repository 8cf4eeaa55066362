"""The configuration file: what is read, and one line for each mistake."""

from pathlib import Path

import pytest
from menura.change_batch import Compression

from agent.config import load
from agent.errors import AgentError, ConfigError, ConfigMalformed, ConfigUnreadable, GatewayInsecure
from agent.filter import Policy
from agent.settings import DumpConfig
from agent.sources.mysql.config import TlsMode

GOOD = """\
tenant: acme
agent: shop-db-1
gateway: {address: "127.0.0.1:7070"}
sources:
  shop:
    client: {host: db, user: menura, password: "s3cret", tls: {mode: required}}
    server_id: 77
    filter_policy: drop
    filter:
      orders:
      customers: {ignored_columns: [email]}
      "otherdb.t":
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "agent.yaml"
    path.write_text(text)
    return path


def test_load_when_file_is_good_then_holds_all_of_it(tmp_path: Path) -> None:
    config = load(write(tmp_path, GOOD))
    (source,) = config.sources
    assert (config.tenant, config.agent, config.gateway.address) == ("acme", "shop-db-1", "127.0.0.1:7070")
    assert (source.name, source.server_id, source.binlog) == ("shop", 77, source.client)
    assert (source.client.address, source.client.tls.mode) == ("db:3306", TlsMode.REQUIRED)
    assert config.gateway.compression is Compression.LZ4
    assert source.filter.policy is Policy.DROP
    assert source.filter.rules == {"orders": None, "customers": ("email",), "otherdb.t": None}


def test_load_when_a_compression_is_named_then_rows_have_it(tmp_path: Path) -> None:
    named = GOOD.replace('address: "127.0.0.1:7070"', 'address: "127.0.0.1:7070", compression: zstd')
    assert load(write(tmp_path, named)).gateway.compression is Compression.ZSTD


def test_load_when_tables_of_harmless_statements_are_named_then_they_are_read_without_their_case(
    tmp_path: Path,
) -> None:
    named = "harmless_statements: [Percona.heartbeat, percona.checksums]"
    (source,) = load(write(tmp_path, GOOD.replace("server_id: 77", named))).sources
    assert source.harmless_statements == {("percona", "heartbeat"), ("percona", "checksums")}


@pytest.mark.parametrize(
    ("host", "tls", "mode"),
    [
        ("db", "", TlsMode.VERIFY_IDENTITY),
        ("127.0.0.1", "", TlsMode.PREFERRED),
        ("localhost", "", TlsMode.PREFERRED),
        ("db", "tls: {mode: preferred}", TlsMode.PREFERRED),
        ("127.0.0.1", "tls: {ca: CA}", TlsMode.VERIFY_IDENTITY),
    ],
)
def test_load_when_no_mode_of_tls_is_named_then_a_server_beyond_this_host_has_to_prove_who_it_is(
    tmp_path: Path, host: str, tls: str, mode: TlsMode
) -> None:
    (tmp_path / "ca.pem").write_text("")
    client = f"client: {{host: {host}, user: menura, {tls.replace('CA', str(tmp_path / 'ca.pem'))}}}"
    former = 'client: {host: db, user: menura, password: "s3cret", tls: {mode: required}}'
    assert load(write(tmp_path, GOOD.replace(former, client))).sources[0].client.tls.mode is mode  # type: ignore[attr-defined]


def test_load_when_a_source_says_how_much_its_dumps_may_take_then_holds_it(tmp_path: Path) -> None:
    limits = 'dump: {workers: 4, max_bytes_per_second: 5000000, windows: ["22:00-06:00 Europe/Berlin"]}'
    config = load(write(tmp_path, GOOD.replace("server_id: 77", limits)))
    dump = config.sources[0].dump
    assert (dump.workers, dump.max_bytes_per_second, dump.max_rows_per_second) == (4, 5_000_000, 0)
    assert [str(window) for window in dump.windows] == ["22:00-06:00 Europe/Berlin"]
    assert load(write(tmp_path, GOOD)).sources[0].dump == DumpConfig()


def test_load_when_printed_then_shows_no_secret(tmp_path: Path) -> None:
    config = load(write(tmp_path, GOOD))
    assert "s3cret" not in repr(config)
    assert config.sources[0].client.password.reveal() == "s3cret"


def test_load_when_password_is_elsewhere_then_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("from-file\n")
    monkeypatch.setenv("MENURA_TEST_SECRET", "from-env")
    by_file = GOOD.replace('password: "s3cret"', f"password_file: {tmp_path / 'secret'}")
    by_env = GOOD.replace('password: "s3cret"', "password_env: MENURA_TEST_SECRET")
    assert load(write(tmp_path, by_file)).sources[0].client.password.reveal() == "from-file"
    assert load(write(tmp_path, by_env)).sources[0].client.password.reveal() == "from-env"


@pytest.mark.parametrize(
    ("found", "instead", "error", "said"),
    [
        ("tenant: acme\n", "", ConfigError, "lacks tenant"),
        ("tenant: acme", "tenant: Acme Corp", ConfigError, "line 1: tenant is not a plain name"),
        ("tenant: acme", "tenant: 7", ConfigError, "line 1: tenant is not a text"),
        ("tenant: acme", "tenat: acme", ConfigError, "line 1: tenat is not a known key"),
        ("server_id: 77", "server_id: many", ConfigError, "line 7: sources.shop.server_id is not a whole number"),
        ("server_id: 77", "server_id: 4294967296", ConfigError, "sources.shop.server_id is not a whole number"),
        (
            "filter_policy: drop",
            "filter_policy: allow",
            ConfigError,
            "line 8: sources.shop.filter_policy is not one of accept, drop",
        ),
        ("ignored_columns: [email]", "ignored_columns: email", ConfigError, "line 11: .*ignored_columns is not a list"),
        ("ignored_columns: [email]", "ignore: [email]", ConfigError, "line 11: .*ignore is not a known key"),
        (
            "      orders:",
            "      orders:\n      orders:",
            ConfigError,
            "line 11: sources.shop.filter.orders is given twice",
        ),
        (
            "server_id: 77",
            "harmless_statements: [heartbeat]",
            ConfigError,
            r"harmless_statements\[0\] is no DATABASE.TABLE",
        ),
        ("server_id: 77", "harmless_statements: a.b", ConfigError, "sources.shop.harmless_statements is not a list"),
        ("server_id: 77", "dump: {workers: 0}", ConfigError, "line 7: sources.shop.dump.workers is not a whole number"),
        ("server_id: 77", "dump: {threads: 4}", ConfigError, "line 7: sources.shop.dump.threads is not a known key"),
        ("server_id: 77", "dump: {windows: always}", ConfigError, "sources.shop.dump.windows is not a list"),
        (
            "server_id: 77",
            'dump: {windows: ["22:00-06:00", "22-6"]}',
            ConfigError,
            r'line 7: sources.shop.dump.windows\[1\] is not "HH:MM-HH:MM ZONE"',
        ),
        (
            "server_id: 77",
            'dump: {windows: ["22:00-06:00 Mars"]}',
            ConfigError,
            "names the time zone Mars, which this host does not know",
        ),
        ("mode: required", "mode: verify_ca", ConfigError, "has mode verify_ca and no ca"),
        ("mode: required", "mode: required, ca: /nowhere.pem", ConfigError, "names /nowhere.pem: No such file"),
        ('password: "s3cret"', 'password: "s3cret", password_env: X', ConfigError, "has password and password_env"),
        ('password: "s3cret"', "password_env: MENURA_TEST_UNSET", ConfigError, "MENURA_TEST_UNSET, which is not set"),
        ("127.0.0.1:7070", "gateway.example.com:7070", GatewayInsecure, "is not on this host"),
        ("127.0.0.1:7070", "127.0.0.1", ConfigError, "line 3: gateway.address is not HOST:PORT"),
        ("  shop:", "  'Shop!':", ConfigError, "is not a plain name"),
        ("agent: shop-db-1", "agent: [", ConfigMalformed, "this is not YAML"),
        ("agent: shop-db-1", "agent: a: b", ConfigMalformed, "line 2, column 9: this is not YAML"),
        (
            'address: "127.0.0.1:7070"',
            'address: "127.0.0.1:7070", compression: snappy',
            ConfigError,
            "line 3: gateway.compression is not one of lz4, zstd",
        ),
        (GOOD, "", ConfigMalformed, "the file is empty"),
        (GOOD, "just text", ConfigError, "line 1: the file is not a mapping"),
        (GOOD, "\x00", ConfigMalformed, "a forbidden character"),
    ],
)
def test_load_when_something_is_wrong_then_says_where_and_how_to_fix_it(
    tmp_path: Path, found: str, instead: str, error: type[AgentError], said: str
) -> None:
    assert found in GOOD
    with pytest.raises(error, match=said) as caught:
        load(write(tmp_path, GOOD.replace(found, instead, 1)))
    assert "\n" not in str(caught.value)
    assert "agent.yaml" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert caught.value.remedy


def test_load_when_there_is_no_file_then_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigUnreadable, match="No such file"):
        load(tmp_path / "agent.yaml")
