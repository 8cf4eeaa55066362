"""What goes wrong at a database: one line that names the setting and the fix, and an exit code of its own."""

import json
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from agent import pipeline
from agent.config import load
from agent.errors import SourceUnreachable
from agent.sources.mysql.config import ServerConfig
from agent.sources.mysql.server.connection import connect
from tests.agent.gateway_double import GatewayDouble
from tests.agent.running import END_SECONDS, agent, client, running_agent, write_config
from tests.servers import FLAVORS, Flavor, Server, free_port, server

NO_GATEWAY = "127.0.0.1:1"


@pytest.fixture(scope="module", params=FLAVORS)
def healthy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(request.param, tmp_path_factory.mktemp(request.param)) as running:
        running.create_replication_user()
        running.run(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY, note VARCHAR(20))",
            "CREATE USER bare IDENTIFIED BY 'bare-secret'",
            "CREATE USER reader IDENTIFIED BY 'reader-secret'",
            "GRANT SELECT ON *.* TO reader",
            "CREATE USER watcher IDENTIFIED BY 'watcher-secret'",
            "GRANT SELECT, REPLICATION CLIENT ON *.* TO watcher",
        )
        yield running


def check(folder: Path, source: dict[str, object]) -> tuple[int, str]:
    """Exit code and the source's last line of `menura agent check`: a warning's stands behind its own."""
    ended = agent("check", write_config(folder, NO_GATEWAY, {"shop": source}))
    lines = ended.stdout.splitlines()
    assert len(lines) == 1 or (len(lines) == 2 and lines[0].startswith("shop: ok")), ended
    assert "secret" not in ended.stdout + ended.stderr
    return ended.returncode, lines[-1]


def test_check_when_all_is_well_then_says_what_it_found(healthy: Server, tmp_path: Path) -> None:
    code, line = check(tmp_path, {"client": client(healthy)})
    assert code == 0
    assert line.startswith("shop: ok, client ")
    assert healthy.flavor in line


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_check_when_a_script_asks_then_all_of_it_is_one_document(healthy: Server, tmp_path: Path, form: str) -> None:
    good = {"client": client(healthy), "filter": {"ordres": None, "shop.orders": {"ignored_columns": ["nota"]}}}
    config = write_config(tmp_path, NO_GATEWAY, {"shop": good, "away": {"client": client(healthy, port=1)}})
    ended = agent("check", config, "--output", form)
    found = json.loads(ended.stdout) if form == "json" else yaml.safe_load(ended.stdout)
    assert ended.returncode == found["exit_code"] == 20
    shop, away = found["sources"]
    assert (shop["source"], shop["error"], away["source"], away["found"]) == ("shop", None, "away", [])
    assert healthy.flavor in shop["found"][0]
    assert {each["code"] for each in shop["warnings"]} == {"FILTER_TABLE_UNKNOWN", "FILTER_COLUMN_UNKNOWN"}
    assert (away["error"]["code"], away["error"]["exit_code"]) == ("SOURCE_UNREACHABLE", 20)
    assert "sources.away.client.host" in away["error"]["remedy"]
    assert "secret" not in ended.stdout


def test_check_when_its_form_is_none_then_the_command_line_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MENURA_OUTPUT", "xml")
    ended = agent("check", tmp_path / "agent.yaml")
    assert ended.returncode == 2
    assert "'xml' is none of table, json, yaml" in ended.stderr


def test_check_when_there_is_no_tls_then_the_password_goes_under_the_servers_key(
    healthy: Server, tmp_path: Path
) -> None:
    healthy.run("FLUSH PRIVILEGES")  # else MySQL knows the password's digest, and asks for no more
    code, line = check(tmp_path, {"client": client(healthy, tls={"mode": "disabled"})})
    assert code == 0, line


@pytest.mark.parametrize(
    ("changes", "exit_code", "said"),
    [
        ({"password": "wrong-secret"}, 21, ["SOURCE_ACCESS_DENIED", "ALTER USER 'menura'"]),
        ({"user": "nobody"}, 21, ["SOURCE_ACCESS_DENIED", "nobody"]),
        ({"user": "bare", "password": "bare-secret"}, 22, ["SOURCE_GRANT_MISSING", "GRANT SELECT ON *.* TO 'bare'"]),
        ({"user": "reader", "password": "reader-secret"}, 22, ["GRANT REPLICATION CLIENT ON *.* TO 'reader'"]),
        ({"user": "watcher", "password": "watcher-secret"}, 22, ["GRANT REPLICATION SLAVE ON *.* TO 'watcher'"]),
        ({"port": 1}, 20, ["SOURCE_UNREACHABLE", "127.0.0.1:1", "Connection refused"]),
    ],
)
def test_check_when_the_connection_is_refused_then_names_the_fix(
    healthy: Server, tmp_path: Path, changes: dict[str, object], exit_code: int, said: list[str]
) -> None:
    code, line = check(tmp_path, {"client": client(healthy, **changes)})
    assert code == exit_code, line
    for words in said:
        assert words in line


@pytest.mark.parametrize(
    ("filter_", "exit_code", "said"),
    [
        ({"ordres": None}, 0, "warning: FILTER_TABLE_UNKNOWN"),
        ({"orders": {"ignored_columns": ["nota"]}}, 14, "'nota'"),
        ({"shop.orders": {"ignored_columns": ["id"]}}, 15, "primary key"),
    ],
)
def test_check_when_the_filter_names_what_is_not_there_then_names_it(
    healthy: Server, tmp_path: Path, filter_: dict[str, object], exit_code: int, said: str
) -> None:
    code, line = check(tmp_path, {"client": client(healthy), "filter": filter_})
    assert code == exit_code, line
    assert said in line


def test_check_when_the_server_id_is_the_servers_own_then_says_so(healthy: Server, tmp_path: Path) -> None:
    code, line = check(tmp_path, {"client": client(healthy), "server_id": 1})
    assert code == 32, line
    assert "sources.shop.server_id" in line


def test_check_when_tls_can_not_be_verified_then_says_so(healthy: Server, tmp_path: Path) -> None:
    stranger = tmp_path / "ca.pem"
    stranger.write_bytes(_certificate_of_a_stranger())
    code, line = check(tmp_path, {"client": client(healthy, tls={"mode": "verify_ca", "ca": str(stranger)})})
    assert code == 23, line
    assert "SOURCE_TLS_FAILED" in line


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize(
    ("settings", "exit_code", "said"),
    [
        ({"log_bin": None}, 25, "log_bin"),
        ({"binlog_format": "MIXED"}, 26, "SET GLOBAL binlog_format = 'ROW'"),
    ],
)
def test_check_when_a_setting_is_wrong_then_names_setting_and_fix(
    flavor: Flavor, settings: dict[str, str | None], exit_code: int, said: str, tmp_path: Path
) -> None:
    given = {name: value for name, value in settings.items() if value is not None}
    if "log_bin" in settings:
        given = {"skip_log_bin": ""}
    with server(flavor, tmp_path / "server", **given) as running:
        running.create_replication_user()
        code, line = check(tmp_path, {"client": client(running)})
    assert code == exit_code, line
    assert said in line


def test_check_when_json_is_logged_in_parts_without_what_was_before_then_names_the_fix(tmp_path: Path) -> None:
    with server("mysql", tmp_path / "server", binlog_row_image="MINIMAL") as running:
        running.create_replication_user()
        fine, _ = check(tmp_path, {"client": client(running)})
        running.run("SET GLOBAL binlog_row_value_options = 'PARTIAL_JSON'")
        code, line = check(tmp_path, {"client": client(running)})
    assert (fine, code) == (0, 28), line
    assert "SET GLOBAL binlog_row_image = 'FULL'" in line


def test_check_when_the_server_is_too_old_then_says_so(tmp_path: Path) -> None:
    with server("mariadb", tmp_path / "server", version="10.4.34-MariaDB") as running:
        running.create_replication_user()
        code, line = check(tmp_path, {"client": client(running)})
    assert code == 24, line
    assert "MySQL 8.0 or MariaDB 10.5" in line


def test_connect_when_the_server_goes_down_in_the_tls_handshake_then_it_is_unreachable_and_tried_again() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def greet_and_go() -> None:
            peer, _ = listener.accept()
            peer.sendall(_GREETING_WITH_TLS)
            peer.recv(4 + 32)  # the wish for TLS
            peer.close()

        going = threading.Thread(target=greet_and_go)
        going.start()
        with pytest.raises(SourceUnreachable):
            connect(ServerConfig("127.0.0.1", "menura", listener.getsockname()[1]), "shop")
        going.join()


#: protocol 10 of a server that has TLS and caching_sha2_password
_GREETING_WITH_TLS = (
    b"\x49\0\0\0" + b"\x0a9.7.0\0" + bytes(4) + b"12345678\0" + b"\xff\xff\xff\2\0\xff\xdf\x15" + bytes(10)
    + b"123456789012\0" + b"caching_sha2_password\0"
)  # fmt: skip


def test_run_when_every_source_is_terminal_then_reports_and_ends_with_its_code(
    healthy: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pipeline, "REPORT_SECONDS", 90.0)
    gateway = GatewayDouble()
    try:
        sources = {
            "shop": {"client": client(healthy, password="wrong-secret")},
            "away": {"client": client(healthy, port=free_port())},
        }
        config = load(write_config(tmp_path, gateway.address, sources))
        assert pipeline.Agent(config).run(threading.Event()) == 21
        assert sum("SOURCE_ACCESS_DENIED" in str(vars(record)) for record in caplog.records) == 1
        assert not any(record.exc_info for record in caplog.records)
        assert gateway.source("shop").status.error.code == "SOURCE_ACCESS_DENIED"
        assert gateway.source("away").status.error.code == "SOURCE_UNREACHABLE"
    finally:
        gateway.stop()


def test_run_when_the_gateway_is_away_and_every_source_terminal_then_still_ends(
    healthy: Server, tmp_path: Path
) -> None:
    config = write_config(tmp_path, NO_GATEWAY, {"shop": {"client": client(healthy, password="wrong-secret")}})
    assert agent("run", config).returncode == 21


def test_run_when_one_source_fails_then_the_other_works(healthy: Server, tmp_path: Path) -> None:
    gateway = GatewayDouble()
    try:
        sources = {
            "shop": {"client": client(healthy)},
            "broken": {"client": client(healthy, password="wrong-secret")},
        }
        config = write_config(tmp_path, gateway.address, sources)
        with running_agent(config, tmp_path / "log") as process:
            gateway.wait(lambda: gateway.source("broken").status.error.code == "SOURCE_ACCESS_DENIED")
            parts = gateway.source("shop").cartography
            gateway.wait(lambda: any(card.table.table == "orders" for part in parts for card in part.tables))
            process.send_signal(signal.SIGINT)
            assert process.wait(END_SECONDS) == 0
    finally:
        gateway.stop()


def _certificate_of_a_stranger() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a stranger")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
