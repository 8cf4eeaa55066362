"""`menura upgrade` over the API: packages are added, rollouts ordered and shown, and the audit log has each command."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from menura.instants import now_us
from sqlalchemy import select

from controlplane_api import agent_packages, rollout_turns
from controlplane_api.api import requests
from controlplane_api.database import Database
from controlplane_api.models import AgentPackage, AgentPackagePiece, AuditEntry
from controlplane_api.registry.sql_registry import SqlRegistry
from tests.controlplane_api.commands import Done, menura
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.upgrade_facts import (
    NEW,
    OLD,
    connect,
    generations,
    package_rows,
    release_files,
    seen,
    tenant_id,
)
from tests.stack import http_client


@pytest.fixture
def api(database: Database) -> Iterator[str]:
    with serving(database) as url:
        yield url


def upgrade(api: str, *words: str) -> Done:
    return menura("upgrade", *words, "--api", api, "--tenant", "acme")


def write_release(folder: Path, version: str, size_bytes: int = 300_000) -> Path:
    files, sums = release_files(version)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / "SHA256SUMS").write_bytes(sums)
    (folder / "SHA256SUMS.sig").write_bytes(b"signature")
    return folder


def audited(database: Database) -> list[str]:
    with database.read() as connection:
        return list(connection.execute(select(AuditEntry.action).order_by(AuditEntry.id)).scalars())


def test_packages_when_a_folder_is_added_then_gateways_have_its_bytes_and_it_can_be_removed(
    api: str, database: Database, tmp_path: Path
) -> None:
    folder = write_release(tmp_path / "dist", NEW)
    added = upgrade(api, "add", str(folder))
    assert added.returncode == 0, added.stderr
    assert "whole" in added.stdout and "deb x86_64, tar x86_64" in added.stdout
    again = upgrade(api, "add", str(folder))
    assert (again.returncode, again.stdout) == (0, added.stdout)
    with database.read() as connection:
        for number, (name, data) in enumerate(sorted(release_files(NEW)[0].items()), 1):
            assert name.endswith((".deb", ".tar.gz"))
            stored = b"".join(agent_packages.read(connection, number, at, len(data)) for at in (0, 131_072, 262_144))
            assert stored == data
            assert agent_packages.read(connection, number, 100, len(data)) == data[100 : 100 + 131_072]
            assert agent_packages.read(connection, number, len(data), len(data)) == b""
    assert upgrade(api, "remove", NEW).returncode == 0
    assert "No version is uploaded" in upgrade(api, "packages").stdout
    with database.read() as connection:
        assert connection.execute(select(AgentPackagePiece.number)).all() == []
    assert audited(database) == ["add release", "complete release", "add release", "remove release"]


def test_packages_when_a_file_has_another_sum_then_it_is_refused_and_never_offered(
    api: str, database: Database, tmp_path: Path
) -> None:
    folder = write_release(tmp_path / "dist", NEW)
    bad = folder / f"menura-agent-{NEW}-linux-x86_64.deb"
    whole = bad.read_bytes()
    bad.write_bytes(whole[:-1] + b"X")
    refused = upgrade(api, "add", str(folder))
    assert refused.returncode != 0
    assert "another sum" in refused.stderr
    assert audited(database) == ["add release", "complete release"]
    assert "half uploaded" in upgrade(api, "packages").stdout
    connect(SqlRegistry(database), "acme", "a")
    assert "has not come whole" in upgrade(api, "start", NEW).stderr
    bad.write_bytes(whole)
    assert upgrade(api, "add", str(folder)).returncode == 0
    assert "half" not in upgrade(api, "packages").stdout


def test_packages_when_a_completion_is_only_planned_then_the_wrong_bytes_stay(api: str, database: Database) -> None:
    files, sums = release_files(NEW, ("deb",))
    ((name, data),) = files.items()
    with database.write() as connection:
        owner = tenant_id(connection, "acme")
        agent_packages.begin(connection, owner, sums, b"s", {name: len(data)}, now_us())
        agent_packages.append(connection, owner, NEW, name, 0, b"x" * len(data), now_us())
    path = f"/api/v1/tenants/acme/agent-releases/{NEW}/complete"
    for planned, left in ((True, len(data)), (False, 0)):
        with http_client(api) as client:
            answer = client.post(path, params={"dry_run": planned}, json={})
        assert (answer.status_code, "another sum" in answer.text) == (422, True)
        with database.read() as connection:
            assert connection.execute(select(AgentPackage.received_bytes)).scalar_one() == left
        assert len(audited(database)) == (0 if left else 1)


def test_packages_when_an_upload_breaks_off_then_it_goes_on_or_goes_away(
    api: str, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_release(tmp_path / "dist", NEW)
    files, sums = release_files(NEW)
    sizes = {name: len(data) for name, data in files.items()}
    with database.write() as connection:
        owner = tenant_id(connection, "acme")
        agent_packages.begin(connection, owner, sums, b"signature", sizes, 1)
        name = next(iter(files))
        agent_packages.append(connection, owner, NEW, name, 0, files[name][:131_072], 1)
    with database.write() as connection:  # the other tenant sees none of it
        assert package_rows(connection, "globex") == []
        other = tenant_id(connection, "globex")
        agent_packages.begin(connection, other, sums, b"signature", sizes, 1)
        assert len(package_rows(connection, "acme")) == 2
    done = upgrade(api, "add", str(folder))  # what was announced long ago is forgotten, and comes anew
    assert done.returncode == 0, done.stderr
    with database.read() as connection:
        assert {row[2] for row in package_rows(connection, "acme")} == {True}
    more = str(write_release(tmp_path / "more", OLD))
    for limit, most in (("MOST_RELEASES", 1), ("MOST_BYTES", 2 * sum(sizes.values()) - 1)):
        with monkeypatch.context() as limited:
            limited.setattr(agent_packages, limit, most)
            full = upgrade(api, "add", more)
        assert "RELEASES_TOO_MANY" in full.stderr
        assert f"it may have {agent_packages.MOST_RELEASES if limit == 'MOST_BYTES' else most} with" in full.stderr
    assert upgrade(api, "add", more).returncode == 0


def test_rollout_when_it_is_ordered_then_plan_and_show_name_each_agent_with_its_reason(
    api: str, database: Database, registry: SqlRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_turns, "now_of", lambda _, at_us: at_us)
    for version in (OLD, NEW):
        assert upgrade(api, "add", str(write_release(tmp_path / version, version))).returncode == 0
    connect(registry, "acme", "eu-1", "eu-2", "us-1")
    connect(registry, "acme", "us-old", version=None)
    options = ("--group", "eu=eu-*", "--group", "us=us-*", "--wait", "0", "--at-once", "1")
    plan = upgrade(api, "start", NEW, *options, "--plan")
    assert plan.returncode == 0, plan.stderr
    assert "3 can have 0.2.0 now, 1 VERSION_NOT_SAID. Nothing was changed." in plan.stdout
    assert "no rollout" in upgrade(api, "show").stdout
    started = upgrade(api, "start", NEW, *options)
    assert started.returncode == 0, started.stderr
    assert "Rollout 1: version 0.2.0, running" in started.stdout
    assert "ROLLOUT_RUNS" in upgrade(api, "start", NEW).stderr
    registry.move_rollouts(2**50)
    shown = json.loads(upgrade(api, "show", "--json").stdout)
    assert shown["rollout"]["state"] == "running"
    assert {each["agent"]: each["reason"] for each in shown["agents"]} == {
        "eu-1": "OFFERED", "eu-2": "TURN_WAITS", "us-1": "GROUP_WAITS", "us-old": "VERSION_NOT_SAID"
    }  # fmt: skip
    registry.record_version(("acme", "eu-1"), seen(OLD, "REFUSED", generations(database, 1)["eu-1"]), 5)
    halted = upgrade(api, "show").stdout
    assert "halted" in halted and "eu-1 (REFUSED)" in halted and "menura upgrade resume" in halted
    for word, state in (("resume", "running"), ("pause", "paused"), ("resume", "running")):
        assert state in upgrade(api, word).stdout
    assert upgrade(api, "skip", "us-*").returncode == 0
    assert "none of this name" in upgrade(api, "skip", "nobody").stderr
    assert "cancelling" in upgrade(api, "cancel").stdout
    assert "ROLLOUT_UNKNOWN" in upgrade(api, "pause").stderr
    back = upgrade(api, "back")
    assert "Rollout 2: the versions from before rollout 1, running" in back.stdout, back.stderr
    wanted = ["start rollout", "resume rollout", "pause rollout", "resume rollout", "skip rollout agents"]
    assert audited(database)[4:] == [*wanted, "cancel rollout", "roll back"]


def test_bounds_when_they_stand_in_two_places_then_they_are_the_same() -> None:
    assert requests.MAX_SUMS_CHARS >= agent_packages.MOST_SUMS_BYTES * 4 / 3
    assert requests.MAX_PART_CHARS >= agent_packages.MOST_PART_BYTES * 4 / 3
    assert requests.MAX_SIGNATURE_CHARS >= agent_packages.MOST_SIGNATURE_BYTES * 4 / 3
    assert requests.MAX_PACKAGES == agent_packages.MOST_FILES
