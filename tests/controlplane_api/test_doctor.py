"""The receiving side's part of `menura doctor`: its checks over facts, its databases, its command."""

import json
import socket
from pathlib import Path

import pytest
from menura.doctor import Result
from menura.landing import IDENTITY_PATH, LandingIdentity, encode_identity
from menura.stores.options import StorageOptions
from sqlalchemy import text

from controlplane_api.database import Database
from controlplane_api.doctor import Asked, CentreFacts, checks, examine, gather
from tests.controlplane_api.commands import menura
from tests.doctoring import Broken, assert_mended_by, assert_well, findings

WELL = CentreFacts(
    database="postgresql://db", revision="0037", head="0037", gateways=2, skew_us=0, connections=5,
    most_connections=100, followed=("a",), landing="a", open_files=65_536, clock_is_synchronised=True, scratch="/tmp",
    scratch_free_bytes=1 << 40,
)  # fmt: skip
BROKEN: Broken = {
    "database-answers": ({"database_error": "Connection refused"}, "Start the database"),
    "database-revision": ({"revision": "0001"}, "Start the API"),
    "database-kind": ({"is_sqlite": True}, "--database to postgresql://"),
    "database-disk": ({"is_sqlite": True, "database_free_bytes": 1}, "Free 1 GiB"),
    "database-connections": ({"connections": 90}, "ALTER SYSTEM SET max_connections = 200"),
    "database-clock": ({"skew_us": 9_000_000}, "timedatectl set-ntp true"),
    "landing-identity": ({"landing": "b"}, "Set --landing"),
    "clock-synchronised": ({"clock_is_synchronised": False}, "timedatectl set-ntp true"),
    "open-files": ({"open_files": 256}, "ulimit -n 4096"),
    "scratch-disk": ({"scratch_free_bytes": 1}, "TMPDIR"),
    "ports": ({"taken": ("127.0.0.1:7070",)}, "ss -ltnp sport = :7070"),
}


def test_checks_when_all_is_well_then_each_is_ok_and_each_has_a_case_where_it_is_not():
    assert_well(checks, WELL, BROKEN)
    assert findings(checks, CentreFacts(database=""))["clock-synchronised"].result is Result.UNKNOWN


@pytest.mark.parametrize("check", BROKEN)
def test_check_when_something_is_wrong_then_says_so_with_what_mends_it(check: str):
    assert_mended_by(checks, WELL, check, BROKEN)


def asked(url: str, landing: Path) -> CentreFacts:
    return gather(Asked(database=url, landing=str(landing)), StorageOptions())


def test_database_when_it_follows_another_landing_or_is_of_another_revision_then_that_is_found(
    database: Database, database_url: str, tmp_path: Path
):
    landing = tmp_path / "landing"
    landing.mkdir()
    (landing / IDENTITY_PATH).write_bytes(encode_identity(LandingIdentity("a" * 32, 12)))
    assert asked(database_url, landing).followed == ()
    with database.write() as connection:
        connection.execute(
            text("INSERT INTO landing (url, identity, applied_entry) VALUES ('/x', :other, 0)"), {"other": "b" * 32}
        )
    found = findings(checks, asked(database_url, landing))
    assert found["landing-identity"].result is Result.FAILED
    assert found["database-answers"].result is found["database-revision"].result is Result.OK
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'of-later'"))
    assert findings(checks, asked(database_url, landing))["database-revision"].result is Result.FAILED


def test_database_when_it_is_empty_then_is_left_so(empty_url: str, tmp_path: Path, kind: str):
    found = findings(checks, asked(empty_url, tmp_path))
    if kind == "sqlite":  # nobody has made its file
        assert found["database-answers"].result is Result.FAILED
        assert not (tmp_path / "empty.db").exists()
    else:
        assert found["database-revision"].found == "it is empty"


def test_landing_when_its_database_is_not_named_then_what_compares_both_is_no_finding(tmp_path: Path):
    def results(**named: str) -> dict[str, Result]:
        return {each.check: each.result for each in examine(Asked(**named))}

    landing, database = tmp_path / "landing", f"sqlite:///{tmp_path}/none.db"
    landing.mkdir()
    assert "landing-identity" not in results(landing=str(landing)).keys() | results(database=database).keys()
    assert results(landing=str(landing), database=database)["landing-identity"] is Result.UNKNOWN
    (landing / IDENTITY_PATH).write_bytes(b"nonsense")
    assert results(landing=str(landing))["landing-identity"] is Result.FAILED


def test_command_when_a_port_is_taken_and_no_database_is_there_then_fails_and_says_both(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        words = ("--database", f"sqlite:///{tmp_path}/none/x.db", "--landing", str(tmp_path / "landing"))
        done = menura("doctor", *words, "--listen", address, "--output", "json")
    assert done.returncode == 2, done.stderr
    results = {each["check"]: each["result"] for each in json.loads(done.stdout)["findings"]}
    assert results["database-answers"] == results["ports"] == "failed"
    assert results["put-if-absent"] == "ok"
    assert menura("doctor", "--landing", "x", "--storage-option", "nonsense").returncode == 2
