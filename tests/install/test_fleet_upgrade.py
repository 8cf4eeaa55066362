"""Upgrades of a fleet from end to end: `menura upgrade`, the API, a gateway, and the updater of a booted host."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.install.conftest import Releases
from tests.install.secured_host import END_SECONDS
from tests.install.upgrading import Upgrading, allow, upgrading
from tests.install.versions import DOES_NOT_START
from tests.stack import wait_for

pytestmark = pytest.mark.long

FIRST, SECOND, BROKEN = "0.1.0", "0.2.0", "0.3.0"


def test_fleet_when_a_rollout_is_started_then_hosts_upgrade_and_a_version_that_does_not_start_halts_it(
    releases: Releases, nfpm: Path, key: Path, tmp_path: Path
) -> None:
    with upgrading(tmp_path, releases(FIRST), key, nfpm) as up:
        allow(up.host)
        for version in (FIRST, SECOND):
            assert "whole" in up.stack.command("upgrade", "add", str(releases(version)))
        assert _shown(up) == {"rollout": None, "agents": []}
        assert "1 can have 0.2.0 now." in up.stack.command("upgrade", "start", SECOND, "--plan")

        up.stack.command("upgrade", "start", SECOND, "--wait", "0s")
        up.row_lands()  # whatever the host is at
        _ends(up, 1, "done", SECOND)
        up.stack.command("upgrade", "back")
        _ends(up, 2, "done", FIRST)
        up.stack.command("upgrade", "start", SECOND, "--wait", "0s")
        _ends(up, 3, "done", SECOND)

        up.waits(40)
        up.stack.command("upgrade", "add", str(releases(BROKEN, DOES_NOT_START)))
        up.stack.command("upgrade", "start", BROKEN, "--wait", "0s")
        up.row_lands()
        halted = _ends(up, 4, "halted", SECOND)
        assert halted["rollout"]["problem"]["code"] == "ROLLOUT_HALTED"
        (agent,) = halted["agents"]
        assert (agent["reason"], agent["version"], agent["runs"]) == ("ROLLED_BACK", BROKEN, SECOND)
        assert "0.3.0 was installed, and then 0.2.0 again: it did not run within 40 s" in agent["message"]
        assert f"{agent['agent']} (ROLLED_BACK)" in up.stack.command("upgrade", "show")

        before = up.invocation()
        up.stack.command("upgrade", "back")
        _ends(up, 5, "done", SECOND)
        up.host.run("systemctl start menura-agent-upgrade")
        assert up.invocation() == before, "what runs the version is not installed again, nor is the order of before"
        assert up.host.run("systemctl --failed --plain --no-legend") == ""


def _ends(up: Upgrading, rollout: int, state: str, version: str) -> dict[str, Any]:
    """The rollout in this state, as it is shown; the host connected in this version, and a row of then landed."""

    def look() -> bool:
        shown = _shown(up)["rollout"]
        return (shown["rollout"], shown["state"]) == (rollout, state)

    wait_for(f"rollout {rollout} to be {state}", look, END_SECONDS)
    up.connected(version)
    up.row_lands()
    shown = _shown(up)
    assert state == "halted" or shown["agents"] == []
    (agent,) = json.loads(up.stack.command("upgrade", "show", "--agents", "--output", "json"))["agents"]
    assert (agent["runs"], agent["connected"]) == (version, True)
    return shown


def _shown(up: Upgrading) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(up.stack.command("upgrade", "show", "--output", "json"))
    return found
