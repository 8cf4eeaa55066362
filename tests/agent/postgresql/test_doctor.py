"""`menura doctor` at a real PostgreSQL: what is broken is found, and the statements of each fix mend it."""

from contextlib import closing
from dataclasses import replace

from menura.doctor import Finding, Result

from agent.sources.postgresql.doctor.checks import transactions
from agent.sources.postgresql.doctor.examination import examine, gather, grants
from agent.sources.postgresql.server.connection import connect, rows
from tests.agent.postgresql.sources import PASSWORD, config_of, login
from tests.postgres import SourceServer
from tests.stack import wait_for

ROLE = "examined"
SETTINGS = {
    "wal_sender_timeout": "1s", "full_page_writes": "off", "logical_decoding_work_mem": "1MB",
    "max_slot_wal_keep_size": "-1",
}  # fmt: skip


def examined(running: SourceServer) -> dict[str, Finding]:
    config = replace(config_of(running, client=login(running, ROLE)), replication=login(running, ROLE))
    return {finding.check: finding for finding in examine("acme", "db-1", config)}


def grant(running: SourceServer) -> None:
    """What `menura agent grants` prints, with names for those in capitals."""
    running.run(f"DROP ROLE IF EXISTS {ROLE}")
    for line in grants("postgresql", ROLE, "127.0.0.1/32", "shop", []):
        if not line.startswith("--"):
            named = line.replace("'...'", f"'{PASSWORD}'").replace('"OWNER"', "postgres").replace('"TABLE"', "keyed")
            running.run(named, database="shop")


def run_fix(running: SourceServer, fix: str) -> None:
    listed = fix.partition(": ")[2].partition("; or ")[0]
    running.run(*listed.split("; "), database="shop")


def test_server_when_settings_tables_and_grants_are_wrong_then_each_is_found_and_its_fix_mends_it(
    postgres: SourceServer,
) -> None:
    postgres.run("CREATE TABLE keyed (id int PRIMARY KEY)", database="shop")
    grant(postgres)
    postgres.run("CREATE TABLE keyless (n int)", database="shop")
    well = examined(postgres)
    granted = ("grant-select", "grant-replication", "publication-kinds", "tables-published")
    assert {check: well[check] for check in granted if well[check].result is not Result.OK} == {}
    for name, value in SETTINGS.items():
        postgres.run(f"ALTER SYSTEM SET {name} = '{value}'")
    postgres.run("SELECT pg_reload_conf()", f"ALTER ROLE {ROLE} NOREPLICATION")
    postgres.run(
        f"REVOKE SELECT ON keyed FROM {ROLE}",
        "ALTER PUBLICATION menura SET (publish = 'insert', publish_via_partition_root = false)",
        database="shop",
    )
    expected = {
        "sender-timeout", "whole-pages", "decoding-memory", "slot-bound", "grant-replication", "grant-select",
        "publication-kinds", "publication-root", "replica-identity", "tables-published",
    }  # fmt: skip
    found = examined(postgres)
    wrong = {check for check, each in found.items() if each.result is not Result.OK}
    assert expected <= wrong, expected - wrong
    for check in sorted(expected):
        run_fix(postgres, found[check].fix)
    mended = examined(postgres)
    run_fix(postgres, mended["tables-published"].fix) if mended["tables-published"].fix else None
    mended = examined(postgres)
    assert {check: mended[check] for check in expected if mended[check].result is not Result.OK} == {}


def test_sessions_when_they_are_of_others_then_they_are_counted_and_the_oldest_transaction_alone_is_ended(
    postgres: SourceServer,
) -> None:
    postgres.run("CREATE TABLE keyed (id int PRIMARY KEY)", database="shop")
    grant(postgres)
    config = replace(config_of(postgres, client=login(postgres, ROLE)), replication=login(postgres, ROLE))
    server = config.replication
    options = {"user": ROLE, "password": PASSWORD, "application_name": "pg_dump"}
    with (
        postgres.connect("shop"),
        postgres.connect("shop", **options) as dump,
        closing(connect(server, "shop")) as menura,
    ):
        rows(menura, "BEGIN")
        before = gather(config, server, "")
        assert before.connections >= 4 and before.oldest_transaction is None
        dump.execute("BEGIN")
        found = gather(config, server, "").oldest_transaction
        assert found is not None
        assert (found.pid, found.user, found.application) == (dump.info.backend_pid, ROLE, "pg_dump")
        fix = transactions(replace(before, oldest_transaction=replace(found, seconds=9_999))).fix
        look, _, end = fix.partition(": ")[2].partition("; where nobody needs what it does: ")
        assert len(postgres.run(look)) == 1
        dump.execute("COMMIT")
        dump.execute("BEGIN")
        assert postgres.run(end) == []  # that one is over
        later = gather(config, server, "").oldest_transaction
        assert later is not None and later.begun != found.begun
        assert postgres.run(end.replace(found.begun, later.begun)) == [(True,)]
        wait_for("its end", lambda: not postgres.run(look))
        dump.close()
