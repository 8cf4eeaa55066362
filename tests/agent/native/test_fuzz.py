"""The compiled core under hostile bytes: a short run of `make fuzz`, and the inputs that once broke it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fuzz
from tests.fuzz.__main__ import fuzz as run
from tests.fuzz.build import build, environment

FOUND = Path(fuzz.__file__).parent / "found"
EVENTS = 60_000


@pytest.fixture(scope="module")
def instrumented() -> None:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc: run .ci/setup environment as root")
    build()


@pytest.mark.long
@pytest.mark.usefixtures("instrumented")
def test_mutated_logs_lead_to_an_answer_or_a_typed_error(tmp_path: Path) -> None:
    assert run(tmp_path, EVENTS, seed=20, round_events=EVENTS) == 0


@pytest.mark.long
@pytest.mark.usefixtures("instrumented")
def test_inputs_that_once_broke_the_core_do_so_no_more() -> None:
    found = sorted(FOUND.iterdir())

    command = [sys.executable, "-m", "tests.fuzz.worker", "replay", *map(str, found)]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr[-4000:]
    assert len(ended.stdout.splitlines()) == len(found) > 0
