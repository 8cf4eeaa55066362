"""A test that waits for something of a process hears at once that the process has died, unless the test wanted that."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.agent.gateway_double import GatewayDouble
from tests.agent.running import running_agent
from tests.stack import Process, ProcessDied, wait_for


def failing(folder: Path) -> Process:
    """An agent that ends at once."""
    return Process(["agent", "run", "--config", str(folder / "no-such-file.yaml")], folder / "agent.log")


def test_a_wait_when_a_process_has_failed_then_says_so_with_its_last_lines(tmp_path: Path) -> None:
    said = r"(?s)waited for rows, and .*agent has ended with 11:.*CONFIG_UNREADABLE"
    with failing(tmp_path), pytest.raises(ProcessDied, match=said):
        wait_for("rows", lambda: False)


def test_a_wait_when_what_it_waits_for_is_the_last_that_a_process_did_then_has_it(tmp_path: Path) -> None:
    with failing(tmp_path) as process:
        assert process.running is not None
        ended = partial(os.waitid, os.P_PID, process.running.pid, os.WEXITED | os.WNOWAIT)  # who has not been told
        looks: Iterator[Callable[[], object]] = iter([ended, process.tail])
        assert "CONFIG_UNREADABLE" in wait_for("its last lines", lambda: _text(next(looks)()))


def _text(found: object) -> str | None:
    return found if isinstance(found, str) else None


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_wait_when_a_test_has_ended_a_process_then_goes_on(tmp_path: Path, *, is_killed: bool) -> None:
    answers = iter([False, False, True])
    with failing(tmp_path) as process:
        process.kill() if is_killed else process.stop()
        assert wait_for("something else", lambda: next(answers), every=0)


def test_a_wait_when_a_test_has_seen_a_process_end_then_goes_on(tmp_path: Path) -> None:
    answers = iter([False, False, True])
    with failing(tmp_path) as process:
        wait_for("its end", lambda: not process.is_running())
        assert wait_for("something else", lambda: next(answers), every=0)


def test_a_gateways_wait_when_the_agent_has_failed_then_says_so_with_its_last_lines(tmp_path: Path) -> None:
    gateway = GatewayDouble()
    try:
        with (
            pytest.raises(AssertionError, match=r"(?s)the agent has ended with 11:.*no-such-file"),
            running_agent(tmp_path / "no-such-file.yaml", tmp_path / "agent.log"),
        ):
            gateway.wait(lambda: False)
    finally:
        gateway.stop()
