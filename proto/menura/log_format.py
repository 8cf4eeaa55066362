"""The form of a process's log lines: text for a person, or a JSON object a line for what gathers logs.

Comes in: log records, with fields in `extra={"fields": {...}}`, and errors among their values. Goes out: lines. An
object has time, level, logger and message, and where the record knows them: code (of the error), tenant, agent, source
and other fields, exception. No record has a row's value or a secret.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType

from menura.errors import MenuraError, printable

VARIABLE = "MENURA_LOG_FORMAT"
TEXT, JSON = "text", "json"
FORMATS = (TEXT, JSON)
HELP = f"form of log lines, text or json (the environment's {VARIABLE})"
_Raised = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
#: of an object; a stack may be deep
MAX_EXCEPTION_CHARS = 20_000


def chosen(asked: str | None = None) -> str:
    """What an option says, else the environment; text where neither names a form."""
    return asked or (JSON if os.environ.get(VARIABLE) == JSON else TEXT)


class JsonFormatter(logging.Formatter):
    """One object a line.

    >>> record = logging.LogRecord("menura.gateway", logging.INFO, "", 0, "stream opened", None, None)
    >>> record.created, record.fields = 0.0, {"source": "shop"}
    >>> JsonFormatter().format(record)  # doctest: +NORMALIZE_WHITESPACE
    '{"time": "1970-01-01T00:00:00.000Z", "level": "info", "logger": "menura.gateway", "message": "stream opened",
    "source": "shop"}'
    """

    def __init__(self, text: logging.Formatter | None = None) -> None:
        """`text`: what writes text in its place."""
        super().__init__()
        self.text = text

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, object] = {
            "time": at,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields: Mapping[str, object] = getattr(record, "fields", {})
        for error in _errors_of(record):
            line |= {"code": error.code, **({"source": error.source} if error.source else {})}
        line |= {name: _plain(value) for name, value in fields.items() if name not in line}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)[-MAX_EXCEPTION_CHARS:]
        text = json.dumps(line, ensure_ascii=False)
        # JSON lets signs through that a terminal obeys
        return text if text.isprintable() else json.dumps(line).replace("\x7f", "\\u007f")


class TextFormatter(logging.Formatter):
    """A line of text each, with the time in UTC; what an exception says stands below it, set in."""

    def __init__(self, *, has_logger: bool) -> None:
        """`has_logger`: each line names its logger."""
        of_logger = "%(name)s: " if has_logger else ""
        super().__init__(f"%(asctime)s.%(msecs)03dZ %(levelname)s {of_logger}%(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def formatException(self, ei: "_Raised") -> str:
        return "\n".join(f"  {printable(line)}" for line in super().formatException(ei).split("\n"))


def to_stderr(*, has_logger: bool = False) -> None:
    """Log lines of INFO and above go to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter(has_logger=has_logger))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _errors_of(record: logging.LogRecord) -> list[MenuraError]:
    """Those that the record is about."""
    values = record.args if isinstance(record.args, tuple) else ()
    raised = record.exc_info[1] if record.exc_info else None
    return [value for value in (*values, raised) if isinstance(value, MenuraError)]


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float | None) else str(value)


def use(asked: str | None = None) -> None:
    """From now on for all lines of the root logger's handlers; what is said last counts."""
    is_json = chosen(asked) == JSON
    for handler in logging.getLogger().handlers:
        former = handler.formatter
        if is_json and not isinstance(former, JsonFormatter):
            handler.setFormatter(JsonFormatter(former))
        elif not is_json and isinstance(former, JsonFormatter):
            handler.setFormatter(former.text)
