"""The agent's systemd unit: what it may do on a database's host, as systemd judges it."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from agent.errors import AgentError
from tests.needs import needs_setup
from tests.servers import ROOT

UNITS = ROOT / "deployment/agent_package/root/usr/lib/systemd/system"
UNIT = UNITS / "menura-agent.service"
UPDATER = UNITS / "menura-agent-upgrade.service"
#: tenths
MOST_EXPOSURE = 20
#: of root's, which installs packages
MOST_EXPOSURE_OF_UPDATER = 20


def entries(key: str) -> list[str]:
    return [line.partition("=")[2] for line in UNIT.read_text().splitlines() if line.startswith(f"{key}=")]


@pytest.fixture
def analyze() -> str:
    needs_setup("systemd-analyze")
    found = shutil.which("systemd-analyze")
    if found is None:
        assert "CI" not in os.environ, ".ci/setup systemd installs it"
        pytest.skip("needs systemd-analyze: sudo apt-get install systemd")
    return found


def test_unit_when_systemd_judges_it_then_its_exposure_is_low(analyze: str) -> None:
    command = [analyze, "security", "--no-pager", "--offline=true", f"--threshold={MOST_EXPOSURE}", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_updater_when_systemd_judges_it_then_it_has_no_network_and_what_an_installer_can_do_without(
    analyze: str,
) -> None:
    most = f"--threshold={MOST_EXPOSURE_OF_UPDATER}"
    command = [analyze, "security", "--no-pager", "--offline=true", most, str(UPDATER)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PrivateNetwork=yes" in UPDATER.read_text().splitlines()


def test_updater_when_systemd_reads_its_units_then_every_line_is_known(analyze: str, tmp_path: Path) -> None:
    for unit in (UPDATER, UPDATER.with_suffix(".path"), UNIT):
        (tmp_path / unit.name).write_text(unit.read_text().replace("=/usr/bin/menura ", f"={shutil.which('true')} "))
    paths = [str(tmp_path / unit.name) for unit in (UPDATER, UPDATER.with_suffix(".path"))]
    done = subprocess.run([analyze, "verify", "--man=no", *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "menura-agent-upgrade" not in done.stderr


def test_unit_when_systemd_reads_it_then_every_line_is_known(analyze: str, tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("=/usr/bin/menura ", f"={shutil.which('true')} "))
    done = subprocess.run([analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert UNIT.name not in done.stderr


def test_unit_when_the_watchdog_kills_then_leaves_no_core() -> None:
    assert entries("WatchdogSec")
    assert entries("LimitCORE") == ["0"]


def test_unit_when_a_configuration_is_wrong_then_does_not_start_again() -> None:
    (codes,) = entries("RestartPreventExitStatus")
    known = {kind.exit_code: kind for kind in classes(AgentError)}
    for code in map(int, codes.split()):
        assert code == 2 or re.match("CONFIG_|FILTER_|POLICY_", known[code].code), code


def classes(kind: type[AgentError]) -> list[type[AgentError]]:
    return [kind, *(found for below in kind.__subclasses__() for found in classes(below))]
