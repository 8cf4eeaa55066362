"""How much of the log agents may fill."""

import logging

import pytest

from gateway import log_lines
from gateway.log_lines import MAX_VALUE_CHARS, LogLines


class Written(logging.Handler):
    """Of a logger of its own, whatever other tests have done with the process's."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.logger = logging.Logger("lines")
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def taken(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


@pytest.fixture
def log() -> Written:
    return Written()


def test_lines_when_many_agents_of_a_tenant_have_long_ones_then_the_tenant_has_so_many_bytes_and_others_theirs(
    log: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "BURST_BYTES", 10 * MAX_VALUE_CHARS)
    monkeypatch.setattr(log_lines, "BYTES_PER_SECOND", 1e-6)
    lines = LogLines()
    for number in range(50):
        lines.write(log.logger, logging.WARNING, f"acme/agent-{number}", "agent says: %s", "x" * 5 * MAX_VALUE_CHARS)
    found = log.taken()
    assert len(found) == 10 and all(len(line) < 1.1 * MAX_VALUE_CHARS for line in found)
    lines.write(log.logger, logging.WARNING, "other/agent", "agent says: %s", "I am well")
    assert log.taken() == ["agent says: I am well"]


def test_lines_when_a_tenant_has_bytes_again_then_the_next_one_says_how_many_were_left_out(
    log: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "BURST_BYTES", 10)
    monkeypatch.setattr(log_lines, "BYTES_PER_SECOND", 1e-6)
    lines = LogLines()
    for _ in range(3):
        lines.write(log.logger, logging.WARNING, "acme/agent", "agent says: %s", "ten bytes!")
    assert log.taken() == ["agent says: ten bytes!"]
    (tenant,) = lines._tenants.of.values()
    tenant.put_back(10)
    lines.write(log.logger, logging.WARNING, "acme/agent", "agent says: %s", "ten bytes!")
    assert log.taken() == ["agent says: ten bytes! (2 lines of this owner were left out before)"]


def test_lines_when_one_agent_has_too_many_then_its_tenants_other_agents_have_theirs(
    log: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "BURST_LINES", 2)
    monkeypatch.setattr(log_lines, "LINES_PER_SECOND", 1e-6)
    lines = LogLines()
    for _ in range(5):
        lines.write(log.logger, logging.WARNING, "acme/loud", "agent says: %s", "again")
    lines.write(log.logger, logging.WARNING, "acme/quiet", "agent says: %s", "once")
    assert log.taken() == ["agent says: again", "agent says: again", "agent says: once"]
