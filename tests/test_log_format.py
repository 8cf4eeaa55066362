"""Log lines as JSON, of each component's own way to log."""

import json
import logging
import sys
from io import StringIO

import pytest
from menura import log_format
from menura.log_format import JSON, VARIABLE, JsonFormatter, TextFormatter, chosen

from agent.runtime import logs
from gateway.errors import LeaseLost
from gateway.log_lines import LogLines

LOST = LeaseLost("owning a source", "another gateway has it", source="acme/shop")


@pytest.fixture
def lines() -> "logging.Logger":
    logger = logging.Logger("menura.test")
    handler = logging.StreamHandler(StringIO())
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    return logger


def told(logger: logging.Logger) -> dict[str, object]:
    (handler,) = logger.handlers
    assert isinstance(handler, logging.StreamHandler)
    (line,) = handler.stream.getvalue().splitlines()
    found: dict[str, object] = json.loads(line)
    return found


def test_json_when_a_line_has_an_error_and_fields_then_they_are_keys_of_one_object(lines: logging.Logger) -> None:
    lines.warning("commit failed: %s", LOST, extra={"fields": {"table": "shop.orders", "rows": 3, "time": "never"}})
    line = told(lines)
    assert set(line) == {"time", "level", "logger", "message", "code", "source", "table", "rows"}
    assert (line["level"], line["logger"], line["code"]) == ("warning", "menura.test", "LEASE_LOST")
    assert (line["source"], line["table"], line["rows"]) == ("acme/shop", "shop.orders", 3)
    assert str(line["time"]).endswith("Z")


def test_json_when_an_agent_says_what_breaks_lines_then_its_line_is_one_object(lines: logging.Logger) -> None:
    LogLines().write(lines, logging.INFO, 'acme/a"\n', "agent says %s: %s", '"},\n{"level":"error', LOST)
    line = told(lines)
    assert (line["tenant"], line["agent"], line["level"], line["code"]) == ("acme", 'a" ', "info", "LEASE_LOST")


def test_text_when_message_fields_and_error_hold_what_a_terminal_obeys_then_the_line_has_nothing_of_it() -> None:
    said = "a\r\n\x1b[2J\x9b1m\u202eb"
    error = (ValueError, ValueError(said), None)
    record = logging.LogRecord("menura", logging.WARNING, "", 0, "refused: %s", (said,), error)
    record.fields = {"found": said}
    line = logs.LineFormatter().format(record)
    assert line.isprintable()
    assert 'refused: a   [2J 1m b found="a\\r\\n\\x1b[2J\\x9b1m\\u202eb"' in line


OBEYED = "a\r\n\x1b[2J\x9b1m\u202eb\x7f"


def raised_with(said: str) -> logging.LogRecord:
    def fail() -> None:
        raise ValueError(said)

    try:
        fail()
    except ValueError:
        return logging.LogRecord("menura", logging.WARNING, "", 0, "dropped: %s", (said,), sys.exc_info())


def test_json_when_values_hold_what_a_terminal_obeys_then_it_is_escaped_and_read_back_as_it_was() -> None:
    line = JsonFormatter().format(raised_with(OBEYED))
    assert line.isprintable()
    assert json.loads(line)["message"] == f"dropped: {OBEYED}"


def test_text_of_gateway_and_sink_when_values_hold_what_a_terminal_obeys_then_no_line_begins_anew() -> None:
    first, *below = TextFormatter(has_logger=True).format(raised_with(OBEYED)).split("\n")
    assert first.endswith("Z WARNING menura: dropped: a   [2J 1m b ")
    assert all(line.isprintable() for line in (first, *below))
    assert below and all(line.startswith("  ") for line in below)


def test_json_when_an_exception_is_logged_then_it_stands_in_the_object(lines: logging.Logger) -> None:
    try:
        raise LOST
    except LeaseLost:
        lines.exception("stream ends by a fault")
    line = told(lines)
    assert line["code"] == "LEASE_LOST"
    assert str(line["exception"]).splitlines()[-1].startswith("gateway.errors.LeaseLost: LEASE_LOST: owning a source")


def test_form_when_option_and_environment_differ_then_the_option_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert (chosen(), chosen("json")) == ("text", "json")
    monkeypatch.setenv(VARIABLE, "json")
    assert (chosen(), chosen("text")) == ("json", "text")


def test_form_when_json_is_asked_for_then_agent_and_root_logger_write_it(monkeypatch: pytest.MonkeyPatch) -> None:
    written = StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    own, root = logging.getLogger("menura"), logging.getLogger()
    before, before_of_own, level, propagates = root.handlers, list(own.handlers), own.level, own.propagate
    try:
        logs.start("info", JSON)
        own.info("source reached", extra={"fields": {"source": "shop"}})
        root.handlers = [logging.StreamHandler(written)]
        log_format.use(JSON)
        root.warning("the API is here")
    finally:
        root.handlers, own.handlers, own.level, own.propagate = before, before_of_own, level, propagates
    agent, api = map(json.loads, written.getvalue().splitlines())
    assert (agent["message"], agent["source"]) == ("source reached", "shop")
    assert (api["message"], api["logger"]) == ("the API is here", "root")


def test_form_when_the_environment_asks_for_json_and_an_option_for_text_then_lines_are_the_text_of_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written, root = StringIO(), logging.getLogger()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    monkeypatch.setattr(root, "handlers", [handler])
    monkeypatch.setenv(VARIABLE, "json")
    log_format.use()
    log_format.use()
    log_format.use("text")
    root.warning("the API is here")
    assert written.getvalue() == "WARNING root: the API is here\n"
