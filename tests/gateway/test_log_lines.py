"""How much of the log agents may fill."""

import logging

import pytest

from gateway import log_lines
from gateway.log_lines import MAX_VALUE_CHARS, LogLines

logger = logging.getLogger("menura.test.log_lines")


def written(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


def test_lines_when_many_agents_of_a_tenant_have_long_ones_then_the_tenant_has_so_many_bytes_and_others_theirs(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "BURST_BYTES", 10 * MAX_VALUE_CHARS)
    monkeypatch.setattr(log_lines, "BYTES_PER_SECOND", 1e-6)
    lines = LogLines()
    for number in range(50):
        lines.write(logger, logging.WARNING, f"acme/agent-{number}", "agent says: %s", "x" * 5 * MAX_VALUE_CHARS)
    found = written(caplog)
    assert len(found) == 10 and all(len(line) < 1.1 * MAX_VALUE_CHARS for line in found)
    lines.write(logger, logging.WARNING, "other/agent", "agent says: %s", "I am well")
    assert written(caplog) == ["agent says: I am well"]


def test_lines_when_a_tenant_has_bytes_again_then_the_next_one_says_how_many_were_left_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "BURST_BYTES", 10)
    monkeypatch.setattr(log_lines, "BYTES_PER_SECOND", 1e-6)
    lines = LogLines()
    for _ in range(3):
        lines.write(logger, logging.WARNING, "acme/agent", "agent says: %s", "ten bytes!")
    assert written(caplog) == ["agent says: ten bytes!"]
    (tenant,) = lines._tenants.of.values()
    tenant.put_back(10)
    lines.write(logger, logging.WARNING, "acme/agent", "agent says: %s", "ten bytes!")
    assert written(caplog) == ["agent says: ten bytes! (2 lines of this owner were left out before)"]


def test_lines_when_one_agent_has_too_many_then_its_tenants_other_agents_have_theirs(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "BURST_LINES", 2)
    monkeypatch.setattr(log_lines, "LINES_PER_SECOND", 1e-6)
    lines = LogLines()
    for _ in range(5):
        lines.write(logger, logging.WARNING, "acme/loud", "agent says: %s", "again")
    lines.write(logger, logging.WARNING, "acme/quiet", "agent says: %s", "once")
    assert written(caplog) == ["agent says: again", "agent says: again", "agent says: once"]
