"""The agent's part of `menura doctor`, without a server: its checks over facts, its host, its command."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from menura.doctor import Asked, Result, exit_code
from menura.doctor_command import lines
from menura.host_facts import existing
from menura.source_configuration import sha256_of

from agent.doctor import host
from agent.doctor.host import HostFacts
from agent.doctor.part import examine
from agent.doctor.source_doctor import doctors
from agent.errors import IdentityUnusable, SourceGrantMissing
from agent.remote_store import FILE_NAME, RemoteStore, Stored
from agent.sources.mysql.doctor import checks as mysql
from agent.sources.mysql.doctor.checks import ServerFacts as MysqlFacts
from agent.sources.mysql.doctor.grants import FLAVORS, least_grants, privileges
from agent.sources.mysql.server.transaction_precise import PreciseTable
from agent.sources.postgresql.doctor import checks as postgresql
from agent.sources.postgresql.doctor.checks import ServerFacts as PostgresqlFacts
from agent.sources.postgresql.doctor.checks import Transaction
from agent.sources.postgresql.doctor.examination import grants
from agent.sources.postgresql.errors import PublicationLacking, TablesUnidentified
from tests.agent.memory import installed
from tests.agent.running import write_config
from tests.controlplane_api.commands import menura
from tests.doctoring import Broken, assert_mended_by, assert_well, findings
from tests.servers import free_port

HOST = HostFacts(
    config="/etc/menura/agent.yaml", config_mode=0o600, has_passwords=True, state_folder="/var/lib/menura",
    state_error="", state_mode=0o700, state_free_bytes=1 << 40, open_files=65_536, memory_bytes=1 << 32,
    clock_is_synchronised=True, gateway="gw:7070", gateway_name_error="", gateway_error="",
    gateway_is_this_host=False, is_encrypted=True, handshake_error="", gateway_certificate_seconds=700_000,
    certificate_seconds=700_000, certificate_age_seconds=10, identity_error="", api_skew_us=0, policy_error="",
    policy_fix="", user="menura",
)  # fmt: skip
HOST_BROKEN: Broken = {
    "configuration-private": ({"config_mode": 0o644}, "chmod 600 /etc/menura/agent.yaml"),
    "state-folder": ({"state_error": "this user may not write"}, "install -d -m 700 -o menura /var/lib/menura"),
    "state-folder-private": ({"state_mode": 0o755}, "chmod 700 /var/lib/menura"),
    "state-folder-disk": ({"state_free_bytes": 1}, "Set state_folder"),
    "upgrades": ({"upgrades": "rolled back", "upgrade_remedy": "read the journal"}, "read the journal"),
    "policy": ({"policy_error": "others may write it", "policy_fix": "chmod go-w POLICY"}, "chmod go-w POLICY"),
    "open-files": ({"open_files": 256}, "ulimit -n 4096"),
    "memory": ({"memory_bytes": 1 << 20}, "dump.workers"),
    "clock-synchronised": ({"clock_is_synchronised": False}, "timedatectl set-ntp true"),
    "gateway-name": ({"gateway_name_error": "Name or service not known"}, "getent hosts gw"),
    "gateway-reachable": ({"gateway_error": "Connection refused"}, "nc -vz gw 7070"),
    "gateway-encrypted": ({"is_encrypted": False}, "menura agent enrol --config /etc/menura/agent.yaml"),
    "gateway-handshake": ({"handshake_error": "self-signed certificate"}, "menura agent enrol"),
    "gateway-certificate": ({"gateway_certificate_seconds": 60}, "--tls-certificate"),
    "agent-identity": ({"identity_error": "No such file"}, "menura agent enrol"),
    "agent-certificate": ({"certificate_seconds": 60}, "menura agent enrol"),
    "agent-certificate-begun": ({"certificate_age_seconds": -60}, "timedatectl"),
    "gateway-clock": ({"api_skew_us": -9_000_000}, "timedatectl"),
}

ACCOUNT = "'menura'@'%'"
NEEDED = frozenset({"SELECT", "REPLICATION SLAVE", "REPLICATION CLIENT"})
MYSQL = MysqlFacts(
    flavor="mysql", version=(8, 4), account=ACCOUNT, privileges={"*.*": NEEDED}, replica_id=1000, skew_us=0,
    is_replica=True, logged_databases="", ignored_databases="", keyless_tables=(), untransactional_tables=(),
    precise_tables=(), connections=3, cipher="TLS_AES_256_GCM_SHA384", certificate_days=100, is_this_host=False,
    setting="sources.shop.binlog",
    variables={
        "log_bin": "ON", "binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_metadata": "FULL",
        "binlog_row_value_options": "", "binlog_checksum": "CRC32", "binlog_expire_logs_seconds": "2592000",
        "server_id": "1", "gtid_mode": "ON", "enforce_gtid_consistency": "ON", "log_replica_updates": "ON",
        "sync_binlog": "1", "innodb_flush_log_at_trx_commit": "1", "max_connections": "151",
    },
)  # fmt: skip
MARIADB = replace(
    MYSQL,
    flavor="mariadb",
    version=(11, 8),
    privileges={"*.*": NEEDED | {"SLAVE MONITOR"}},
    variables={"gtid_strict_mode": "ON", "log_slave_updates": "ON"}
    | {name: value for name, value in MYSQL.variables.items() if "gtid" not in name and "replica" not in name},
)


def variable(**changed: str) -> dict[str, object]:
    return {"variables": {**MYSQL.variables, **changed}}


def privileged(*names: str) -> dict[str, object]:
    return {"privileges": {"*.*": frozenset(names)}}


MYSQL_BROKEN: Broken = {
    "version": ({"version": (5, 7)}, "Upgrade the server to 8.0"),
    "log-bin": (variable(log_bin="OFF"), "log_bin=binlog"),
    "binlog-format": (variable(binlog_format="MIXED"), "SET GLOBAL binlog_format = 'ROW'"),
    "binlog-row-image": (variable(binlog_row_image="MINIMAL"), "SET GLOBAL binlog_row_image = 'FULL'"),
    "binlog-row-metadata": (variable(binlog_row_metadata="MINIMAL"), "SET GLOBAL binlog_row_metadata = 'FULL'"),
    "binlog-row-value-options": (
        variable(binlog_row_image="NOBLOB", binlog_row_value_options="PARTIAL_JSON"),
        "SET GLOBAL binlog_row_value_options = ''",
    ),
    "binlog-checksum": (variable(binlog_checksum="NONE"), "SET GLOBAL binlog_checksum = 'CRC32'"),
    "binlog-retention": (
        variable(binlog_expire_logs_seconds="3600"),
        "SET GLOBAL binlog_expire_logs_seconds = 604800",
    ),
    "binlog-databases": ({"ignored_databases": "test"}, "binlog_ignore_db"),
    "server-id": (variable(server_id="0"), "SET GLOBAL server_id = 1"),
    "replica-id": (variable(server_id="1000"), "Set sources.shop.server_id"),
    "gtids": (variable(gtid_mode="OFF_PERMISSIVE"), "SET GLOBAL gtid_mode = 'ON_PERMISSIVE'"),
    "gtid-strictness": (variable(enforce_gtid_consistency="WARN"), "enforce_gtid_consistency = 'ON'"),
    "replica-logs": (variable(log_replica_updates="OFF"), "log_replica_updates=ON"),
    "durable-log": (variable(sync_binlog="0"), "SET GLOBAL sync_binlog = 1"),
    "durable-rows": (variable(innodb_flush_log_at_trx_commit="2"), "innodb_flush_log_at_trx_commit = 1"),
    "grant-replication-slave": (privileged("SELECT"), f"GRANT REPLICATION SLAVE ON *.* TO {ACCOUNT}"),
    "grant-log-status": (privileged("SELECT"), f"GRANT REPLICATION CLIENT ON *.* TO {ACCOUNT}"),
    "grant-select": (privileged("REPLICATION SLAVE"), f"GRANT SELECT ON *.* TO {ACCOUNT}"),
    "grant-replica-lag": (privileged("SELECT"), f"GRANT REPLICATION CLIENT ON *.* TO {ACCOUNT}"),
    "grants-too-many": (privileged("INSERT", "SELECT"), f"REVOKE INSERT ON *.* FROM {ACCOUNT}"),
    "keys": ({"keyless_tables": (("shop", "t"),)}, "ALTER TABLE `shop`.`t` ADD COLUMN"),
    "engines": ({"untransactional_tables": (("shop", "t"),)}, "ALTER TABLE `shop`.`t` ENGINE"),
    "row-versions": (
        {"precise_tables": (PreciseTable(("shop", "t"), ("a", "b")),)},
        "ALTER TABLE `shop`.`t` DROP COLUMN `a`, DROP COLUMN `b`, DROP PERIOD FOR SYSTEM_TIME, DROP SYSTEM VERSIONING;",
    ),
    "connections": ({"connections": 150}, "SET GLOBAL max_connections = 302"),
    "encrypted": ({"cipher": ""}, "sources.shop.binlog.tls"),
    "server-certificate": ({"certificate_days": 3}, "ALTER INSTANCE RELOAD TLS"),
    "clock": ({"skew_us": 60_000_000}, "timedatectl set-ntp true"),
}

LOAD = Transaction(4711, "app", "pg_dump", "2026-11-27 03:04:05.678901+00", 5)
POSTGRESQL = PostgresqlFacts(
    version=150018, version_text="15.18", is_standby=True, role="menura", is_superuser=False, may_replicate=True,
    slots=1, senders=1, connections=3, slot="menura_shop", slot_status="reserved", slot_reason="",
    publication="menura", publishes=frozenset({"insert", "update", "delete", "truncate"}), via_root=True,
    findings=(), oldest_transaction=LOAD, skew_us=0, is_encrypted=True, is_this_host=False,
    setting="sources.shop.client",
    settings={
        "wal_level": "logical", "max_replication_slots": "10", "max_wal_senders": "10",
        "max_slot_wal_keep_size": "102400", "wal_sender_timeout": "60000", "fsync": "on", "full_page_writes": "on",
        "hot_standby_feedback": "on", "logical_decoding_work_mem": "65536", "max_connections": "100",
    },
)  # fmt: skip


def setting(**changed: str) -> dict[str, object]:
    return {"settings": {**POSTGRESQL.settings, **changed}}


POSTGRESQL_BROKEN: Broken = {
    "version": ({"version": 130000, "version_text": "13"}, "Upgrade the server to 14"),
    "wal-level": (setting(wal_level="replica"), "ALTER SYSTEM SET wal_level = 'logical'"),
    "slots": ({"slots": 10, "slot_status": ""}, "ALTER SYSTEM SET max_replication_slots = '20'"),
    "senders": ({"senders": 10}, "ALTER SYSTEM SET max_wal_senders = '20'"),
    "slot": ({"slot_status": "lost"}, "pg_drop_replication_slot('menura_shop')"),
    "slot-bound": (setting(max_slot_wal_keep_size="-1"), "ALTER SYSTEM SET max_slot_wal_keep_size = '100GB'"),
    "slot-idle": (setting(idle_replication_slot_timeout="60"), "idle_replication_slot_timeout = '0'"),
    "sender-timeout": (setting(wal_sender_timeout="1000"), "wal_sender_timeout = '60s'"),
    "durable-log": (setting(fsync="off"), "ALTER SYSTEM SET fsync = 'on'"),
    "whole-pages": (setting(full_page_writes="off"), "ALTER SYSTEM SET full_page_writes = 'on'"),
    "standby-feedback": (setting(hot_standby_feedback="off"), "hot_standby_feedback = 'on'"),
    "decoding-memory": (setting(logical_decoding_work_mem="64"), "logical_decoding_work_mem = '64MB'"),
    "grant-replication": ({"may_replicate": False}, 'ALTER ROLE "menura" REPLICATION'),
    "grants-too-many": ({"is_superuser": True}, 'ALTER ROLE "menura" NOSUPERUSER'),
    "publication": ({"publishes": None}, 'CREATE PUBLICATION "menura"'),
    "publication-kinds": ({"publishes": frozenset({"insert"})}, "SET (publish = 'insert, update, delete, truncate')"),
    "publication-root": ({"via_root": False}, "SET (publish_via_partition_root = true)"),
    "tables-published": ({"findings": (PublicationLacking("a", "it lacks t", remedy="Add it"),)}, "Add it"),
    "replica-identity": ({"findings": (TablesUnidentified("a", "t has no key", remedy="Alter it"),)}, "Alter it"),
    "grant-select": ({"findings": (SourceGrantMissing("a", "t is hidden", remedy="Grant it"),)}, "Grant it"),
    "transactions": ({"oldest_transaction": replace(LOAD, seconds=9_999)}, "pg_terminate_backend"),
    "connections": ({"connections": 99}, "ALTER SYSTEM SET max_connections = '200'"),
    "encrypted": ({"is_encrypted": False}, "sources.shop.client.tls"),
    "clock": ({"skew_us": -60_000_000}, "timedatectl set-ntp true"),
}

PARTS = {
    "host": (host.checks, HOST, HOST_BROKEN),
    "mysql": (mysql.checks, MYSQL, MYSQL_BROKEN),
    "postgresql": (postgresql.checks, POSTGRESQL, POSTGRESQL_BROKEN),
}


def test_checks_when_all_is_well_then_each_is_ok_and_each_has_a_case_where_it_is_not():
    for checks, facts, broken in PARTS.values():
        assert_well(checks, facts, broken)  # type: ignore[arg-type,misc]
    well = findings(mysql.checks, MARIADB)
    assert [each for each in well.values() if each.result is not Result.OK] == []


@pytest.mark.parametrize(("part", "check"), [(part, check) for part, found in PARTS.items() for check in found[2]])
def test_check_when_something_is_wrong_then_says_so_with_what_mends_it(part: str, check: str):
    checks, facts, broken = PARTS[part]
    assert_mended_by(checks, facts, check, broken)  # type: ignore[arg-type,misc]


@pytest.mark.parametrize(
    ("check", "changes"),
    [
        ("binlog-databases", {"logged_databases": None}),
        ("replica-logs", {"is_replica": None}),
        ("keys", {"keyless_tables": None}),
        ("server-certificate", {"certificate_days": None}),
        ("clock", {"skew_us": None}),
        ("connections", {"connections": None}),
    ],
)
def test_check_when_it_could_not_be_asked_then_is_unknown_and_not_well(check: str, changes: dict[str, object]):
    assert findings(mysql.checks, replace(MYSQL, **changes))[check].result is Result.UNKNOWN


@pytest.mark.parametrize(
    ("check", "named"), [("grant-log-status", "GRANT BINLOG MONITOR"), ("grant-replica-lag", "GRANT REPLICA MONITOR")]
)
def test_grants_when_the_server_is_mariadb_then_they_have_its_names(check: str, named: str):
    assert named in findings(mysql.checks, replace(MARIADB, privileges={}))[check].fix


@pytest.mark.parametrize(
    ("lines", "statements"),
    [
        (  # what it gives back is on the same scope
            ["GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO A", "GRANT ALL PRIVILEGES ON `shop`.* TO A"],
            ["REVOKE ALL PRIVILEGES ON `shop`.* FROM A", "GRANT SELECT ON `shop`.* TO A"],
        ),
        (
            ["GRANT ALL PRIVILEGES ON *.* TO A WITH GRANT OPTION"],
            [
                "REVOKE ALL PRIVILEGES ON *.* FROM A",
                "REVOKE GRANT OPTION ON *.* FROM A",
                "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO A",
            ],
        ),
        (  # as MySQL lists an account that may do all
            [
                "GRANT SELECT, CREATE, EVENT, REPLICATION SLAVE, TRIGGER ON *.* TO A WITH GRANT OPTION",
                "GRANT SET_USER_ID,SYSTEM_VARIABLES_ADMIN ON *.* TO A WITH GRANT OPTION",
                "GRANT SELECT (`a`), UPDATE (`a`, `b`) ON `shop`.`t` TO A",
                "GRANT EXECUTE ON PROCEDURE `shop`.`p` TO A",
            ],
            [
                "REVOKE CREATE, EVENT, GRANT OPTION, SET_USER_ID, SYSTEM_VARIABLES_ADMIN, TRIGGER ON *.* FROM A",
                "REVOKE UPDATE (`a`, `b`) ON `shop`.`t` FROM A",
                "REVOKE EXECUTE ON PROCEDURE `shop`.`p` FROM A",
            ],
        ),
    ],
)
def test_grants_when_there_are_more_than_the_agent_needs_then_these_are_revoked_and_it_reads_no_more_than_before(
    lines: list[str], statements: list[str]
):
    facts = replace(MYSQL, account="A", privileges=privileges(lines))
    assert findings(mysql.checks, facts)["grants-too-many"].fix == "Run on the server: " + "; ".join(statements)


@pytest.mark.parametrize(
    ("consistency", "mode", "step", "waits_for"),
    [
        ("OFF", "OFF", "enforce_gtid_consistency = 'WARN'", ""),
        ("WARN", "OFF", "enforce_gtid_consistency = 'ON'", "error log"),
        ("ON", "OFF", "gtid_mode = 'OFF_PERMISSIVE'", ""),
        ("ON", "OFF_PERMISSIVE", "gtid_mode = 'ON_PERMISSIVE'", "OFF_PERMISSIVE too"),
        ("ON", "ON_PERMISSIVE", "gtid_mode = 'ON'", "Ongoing_anonymous_transaction_count"),
    ],
)
def test_gtids_when_they_are_off_then_the_fix_is_the_next_step_alone_and_what_to_wait_for(
    consistency: str, mode: str, step: str, waits_for: str
):
    facts = replace(MYSQL, **variable(enforce_gtid_consistency=consistency, gtid_mode=mode))
    found = findings(mysql.checks, facts)
    for check in ("gtids", "gtid-strictness") if consistency != "ON" else ("gtids",):
        before, _, after = found[check].fix.partition("Run on the server: ")
        assert after.startswith(f"SET GLOBAL {step}") and "SET" not in after[3:], after
        assert waits_for in before and bool(waits_for) == bool(before)


def test_retention_when_the_server_knows_days_alone_then_the_fix_sets_days():
    variables = {name: value for name, value in MARIADB.variables.items() if name != "binlog_expire_logs_seconds"}
    old = replace(MARIADB, version=(10, 5), variables=variables | {"expire_logs_days": "1.000000"})
    found = findings(mysql.checks, old)["binlog-retention"]
    assert "SET GLOBAL expire_logs_days = 7; add expire_logs_days=7" in found.fix


def test_transactions_when_one_is_old_then_the_fix_shows_it_and_ends_that_one_alone():
    old = findings(postgresql.checks, replace(POSTGRESQL, oldest_transaction=replace(LOAD, seconds=9_999)))
    found = old["transactions"]
    assert all(word in found.found for word in ("4711", "pg_dump", "app", "9999 s"))
    look, _, end = found.fix.partition("; where nobody needs what it does: ")
    assert look == "Run on the server: SELECT * FROM pg_stat_activity WHERE pid = 4711"
    assert end.endswith("WHERE pid = 4711 AND xact_start = '2026-11-27 03:04:05.678901+00'")


def test_command_when_a_server_does_not_answer_then_that_fails_the_rest_is_unknown_and_the_fix_stays_one_line(
    tmp_path: Path,
):
    port = free_port()
    login = {"host": "127.0.0.1", "port": port, "user": "menura", "password": "menura-secret"}
    sources = {
        "shop": {"client": login},
        "crm": {"kind": "postgresql", "client": {**login, "database": "crm"}},
    }
    config = write_config(tmp_path, f"127.0.0.1:{port}", sources)
    done = menura("doctor", "--config", str(config), "--output", "json")
    assert done.returncode == 2, done.stderr
    assert "menura-secret" not in done.stdout
    shown = json.loads(done.stdout)
    results = {(each["part"], each["check"]): each for each in shown["findings"]}
    assert results["agent's host", "gateway-reachable"]["fix"].endswith(f"nc -vz 127.0.0.1 {port}")
    assert results["agent's host", "state-folder"]["result"] == "ok"
    for part, known in (("source shop, client", MYSQL_BROKEN), ("source crm, client", POSTGRESQL_BROKEN)):
        assert results[part, "reachable"]["result"] == "failed" and results[part, "reachable"]["fix"]
        assert all(results[part, check]["result"] == "unknown" for check in known)
    assert len(results) >= 40
    as_text = menura("doctor", "--config", str(config), COLUMNS="60").stdout
    assert f"nc -vz 127.0.0.1 {port}\n" in as_text
    assert "exit_code: 2" in menura("doctor", "--config", str(config), "--output", "yaml").stdout


def remote_config(folder: Path, sources: dict[str, object]) -> Path:
    """Of an agent whose sources the control plane configures too."""
    path = write_config(folder, "127.0.0.1:1", sources)
    path.write_text(path.read_text() + "remote: {}\n")
    return path


def test_sources_when_the_control_plane_has_configured_them_then_they_are_examined_too(tmp_path: Path):
    login = {"host": "127.0.0.1", "port": free_port(), "user": "menura"}
    (tmp_path / "state" / "secrets").mkdir(parents=True)
    (tmp_path / "state" / "secrets" / "password").write_text("menura-secret")
    documents = {
        "crm": json.dumps({"kind": "mysql", "client": {**login, "password_file": "password"}}),
        "shop": json.dumps({"kind": "mysql", "client": {**login, "password_file": "nowhere"}}),
        "own": json.dumps({"kind": "mysql", "client": {**login, "password_file": "nowhere"}}),
    }
    store = RemoteStore(tmp_path / "state")
    store.write({name: Stored(1, sha256_of(text), text) for name, text in documents.items()})
    asked = Asked(config=str(remote_config(tmp_path, {"own": {"client": {**login, "password": "menura-secret"}}})))
    found = {(each.part, each.check): each for each in examine(asked)}
    assert found["source crm, client", "reachable"].result is Result.FAILED
    assert found["source own, client", "reachable"].result is Result.FAILED
    assert found["source shop", "examined"].result is Result.UNKNOWN and found["source shop", "examined"].fix
    assert ("source own", "examined") not in found
    store.write({"crm": Stored(1, "of another text", documents["crm"])})
    (other,) = (each for each in examine(asked) if each.check == "examined")
    assert other.part == "source crm" and "digest" in other.found
    (tmp_path / "state" / FILE_NAME).write_text('{"format": 2, "sources": {}}')
    (broken,) = (each for each in examine(asked) if each.check == "examined")
    assert broken.result is Result.UNKNOWN and "remote-sources.json" in broken.found


def test_sources_when_their_kind_brings_no_checks_then_that_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with installed(tmp_path, monkeypatch):
        config = write_config(tmp_path, "127.0.0.1:1", {"shop": {"kind": "memory", "database": "shop"}})
        (found,) = (each for each in examine(Asked(config=str(config))) if each.part == "source shop")
    assert found.result is Result.UNKNOWN and found.fix.startswith("Upgrade the package")


def test_clock_when_no_api_is_named_then_it_is_no_finding(tmp_path: Path):
    config = str(remote_config(tmp_path, {}))
    assert "gateway-clock" not in {each.check for each in examine(Asked(config=config))}
    asked = Asked(config=config, api="http://127.0.0.1:1")
    assert {each.check: each.result for each in examine(asked)}["gateway-clock"] is Result.UNKNOWN


def test_folder_when_this_user_may_not_look_there_then_what_is_above_it_is_asked(tmp_path: Path):
    unseen = tmp_path / ("n" * 300) / "state"  # looking there is refused to root too
    assert existing(unseen) == tmp_path
    path = remote_config(tmp_path, {})
    path.write_text(path.read_text().replace(str(tmp_path / "state"), str(unseen)))
    found = {each.check: each for each in examine(Asked(config=str(path)))}
    assert found["examined"].result is Result.UNKNOWN and str(unseen) in found["examined"].found
    path.write_text(path.read_text().replace("127.0.0.1:1", "gw.example:7070"))
    with pytest.raises(IdentityUnusable, match="name too long"):
        examine(Asked(config=str(path)))


def test_state_folder_when_it_is_not_there_yet_then_is_well_where_the_agent_can_make_it():
    for error, result in (("", Result.OK), ("this user may not write", Result.UNKNOWN)):
        facts = replace(HOST, state_mode=None, state_error=error)
        assert findings(host.checks, facts)["state-folder-private"].result is result


def test_lines_when_shown_then_what_is_wrong_comes_first_and_what_is_well_only_if_it_is_asked_for():
    found = host.checks.of("host", replace(HOST, open_files=1, state_error="full", api_skew_us=None))
    shown = list(lines(found, width=60))
    heads = [line.split()[0] for line in shown if line.startswith(("FAILED", "warning", "unknown", "ok"))]
    assert heads == ["FAILED", "warning", "unknown"]
    assert len([line for line in lines(found, every=True) if line.startswith("ok ")]) == 15
    assert shown[-1] == "18 checks: 15 ok, 1 warning, 1 failed, 1 unknown"
    assert exit_code(found) == 2


def test_command_when_nothing_is_named_or_the_file_is_wrong_then_says_so(tmp_path: Path):
    assert menura("doctor").returncode == 2
    done = menura("doctor", "--config", str(tmp_path / "nowhere.yaml"))
    assert done.returncode == 2 and "CONFIG_UNREADABLE" in done.stderr


def test_grants_when_a_flavor_is_named_then_each_kinds_least_statements_are_printed():
    flavors = {flavor for doctor in doctors().values() for flavor in doctor.flavors}
    assert flavors == {"mysql", "mariadb", "postgresql"}
    asked = ("agent", "grants", "--user", "reader", "--only", "shop", "--database", "shop", "--flavor")
    printed = {flavor: menura(*asked, flavor).stdout for flavor in flavors}
    assert "GRANT SELECT ON `shop`.* TO 'reader'@'%';" in printed["mysql"]
    assert "BINLOG MONITOR" in printed["mariadb"]
    assert 'GRANT USAGE ON SCHEMA "shop" TO "reader";' in printed["postgresql"]
    assert "-- pg_hba.conf: host shop reader ADDRESS scram-sha-256" in printed["postgresql"]
    assert "Give --flavor mariadb, mysql, postgresql" in menura("agent", "grants", "--flavor", "oracle").stderr


def test_grants_when_a_database_has_wildcards_in_its_name_then_they_are_escaped():
    grant = "GRANT SELECT ON `shop\\_1\\%`.* TO 'menura'@'%';"
    literal = "--   GRANT SELECT ON `shop_1%`.* TO 'menura'@'%';"
    printed = {flavor: least_grants(flavor, "menura", "%", ["shop_1%"]) for flavor in FLAVORS}
    assert all(grant in lines for lines in printed.values())
    assert literal in printed["mysql"] and literal not in printed["mariadb"]


def test_grants_when_they_are_for_postgresql_then_tables_are_published_and_later_ones_are_those_of_their_owner():
    printed = grants("postgresql", "menura", "", "shop", ["shop"])
    assert 'ALTER PUBLICATION menura ADD TABLE ONLY "shop"."TABLE";' in printed
    assert '--   GRANT "OWNER" TO "menura"; GRANT CREATE ON DATABASE "shop" TO "menura";' in printed
    rights = 'ALTER DEFAULT PRIVILEGES FOR ROLE "OWNER" IN SCHEMA "shop" GRANT SELECT ON TABLES TO "menura";'
    assert rights in printed
