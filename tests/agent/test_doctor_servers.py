"""`menura doctor` at real servers: what is broken is found, and the statements of each fix mend it, word for word."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from menura.doctor import Finding, Result

from agent.config_entries import Secret
from agent.filter import Filter
from agent.sources.mysql.config import MysqlConfig, ServerConfig
from agent.sources.mysql.ddl.identifiers import IDENTIFIERS
from agent.sources.mysql.doctor.examination import examine, grants
from tests.servers import FLAVORS, Server, server

PASSWORD = "menura-secret"
PERIOD = "a {0} GENERATED ALWAYS AS ROW START, b {0} GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (a, b)"
BROKEN = {
    "binlog_format": "STATEMENT", "binlog_row_image": "MINIMAL", "binlog_row_metadata": "MINIMAL",
    "binlog_checksum": "NONE", "binlog_expire_logs_seconds": "3600", "sync_binlog": "0",
    "innodb_flush_log_at_trx_commit": "2", "max_connections": "10",
}  # fmt: skip


@pytest.fixture(params=FLAVORS)
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """Its account has what `menura agent grants` prints."""
    with server(request.param, tmp_path / "server") as found:
        found.run("CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY)")
        for statement in grants(found.flavor, "menura", "%", "", ["shop"]):
            if not statement.startswith("--"):
                found.run(statement.replace("'...'", f"'{PASSWORD}'"))
        yield found


def examined(running: Server) -> dict[str, Finding]:
    login = ServerConfig(running.host, "menura", running.port, Secret(PASSWORD))
    source = MysqlConfig(
        name="shop", kind="mysql", filter=Filter(identifiers=IDENTIFIERS), client=login, binlog=login, server_id=77
    )
    return {finding.check: finding for finding in examine("acme", "db-1", source)}


def wrong(found: dict[str, Finding]) -> set[str]:
    return {check for check, each in found.items() if each.result is not Result.OK}


def statements(fix: str) -> list[str]:
    """What a fix says is to be run on the server."""
    assert "Run on the server: " in fix, fix
    listed = fix.partition("Run on the server: ")[2].partition("; add ")[0].partition("; then ")[0]
    listed = listed.removesuffix("; all in one session")
    return listed.removesuffix(" and reconnect its clients").split("; ")


def test_server_when_settings_tables_and_grants_are_wrong_then_each_is_found_and_its_fix_mends_it(running: Server):
    before = examined(running)
    assert not wrong(before) & {check for check in before if check.startswith("grant")}, before
    broken = dict(BROKEN)
    broken |= {"binlog_row_value_options": "PARTIAL_JSON"} if running.flavor == "mysql" else {"gtid_strict_mode": "OFF"}
    for name, value in broken.items():
        running.run(f"SET GLOBAL {name} = {value if value.isdigit() else repr(value)}")
    if running.flavor == "mysql":
        modes = ["ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF"]
        on = running.run("SELECT @@GLOBAL.gtid_mode")[0][0] == "ON"
        running.run(*(f"SET GLOBAL gtid_mode = '{mode}'" for mode in modes if on))
        running.run("SET GLOBAL enforce_gtid_consistency = 'OFF'")
    engine = "MyISAM" if running.flavor == "mysql" else "Aria TRANSACTIONAL=0"
    running.run("CREATE TABLE shop.keyless (n INT)", f"CREATE TABLE shop.old (id INT PRIMARY KEY) ENGINE={engine}")
    if running.flavor == "mariadb":
        running.run(
            f"CREATE TABLE shop.precise (id INT KEY, {PERIOD.format('BIGINT UNSIGNED')}) WITH SYSTEM VERSIONING",
            f"CREATE TABLE shop.timed (id INT PRIMARY KEY, {PERIOD.format('TIMESTAMP(6)')}) WITH SYSTEM VERSIONING",
            "CREATE TABLE shop.hidden LIKE shop.precise",
            "CREATE TABLE shop.plain (id INT PRIMARY KEY) WITH SYSTEM VERSIONING",
            "SET SESSION system_versioning_alter_history = 'KEEP'",
            "ALTER TABLE shop.hidden DROP COLUMN a, DROP COLUMN b, DROP PERIOD FOR SYSTEM_TIME",
        )
    running.run(
        "REVOKE ALL PRIVILEGES, GRANT OPTION FROM 'menura'@'%'", "GRANT INSERT, SELECT ON shop.* TO 'menura'@'%'"
    )
    found = examined(running)
    expected = {
        "binlog-format", "binlog-row-image", "binlog-row-metadata", "binlog-checksum", "binlog-retention",
        "gtid-strictness", "durable-log", "durable-rows", "connections", "grant-replication-slave",
        "grant-log-status", "grants-too-many", "keys", "engines",
    }  # fmt: skip
    expected |= {"gtids", "binlog-row-value-options"} if running.flavor == "mysql" else {"row-versions"}
    assert expected <= wrong(found), expected - wrong(found)
    if running.flavor == "mariadb":
        named = "2 tables whose versions count transactions: shop.hidden, shop.precise"
        assert found["row-versions"].found == named
    for check in ("binlog-databases", "replica-logs"):  # it may not be asked: what lacks is named
        assert found[check].result is Result.UNKNOWN
        running.run(*statements(found[check].fix))
    for check in sorted(expected):
        running.run(*statements(found[check].fix))
    for _ in range(4 if running.flavor == "mysql" else 0):  # to GTIDs step by step
        running.run(*statements(examined(running)["gtids"].fix))
    running.run("GRANT ALL PRIVILEGES ON shop.* TO 'menura'@'%'")
    running.run(*statements(examined(running)["grants-too-many"].fix))
    assert examined(running)["grant-select"].found == "'menura'@'%' has SELECT on `shop`.*"
    running.run("GRANT ALL PRIVILEGES ON *.* TO 'menura'@'%' WITH GRANT OPTION")
    running.run(*statements(examined(running)["grants-too-many"].fix))
    mended = examined(running)
    assert not wrong(mended) & (expected | {"binlog-databases", "replica-logs"}), mended


def test_server_when_the_password_is_wrong_then_only_that_is_told_with_its_remedy(running: Server):
    running.run("ALTER USER 'menura'@'%' IDENTIFIED BY 'another-secret'")
    found = examined(running)
    assert found["reachable"].result is Result.FAILED and "ALTER USER" in found["reachable"].fix
    assert wrong(found) == set(found)
