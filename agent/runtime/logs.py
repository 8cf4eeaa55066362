"""Log lines: `time level message key=value ...`, or JSON. Fields come in `extra={"fields": {...}}`; no row's value."""

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

from menura.errors import printable
from menura.log_format import JSON, JsonFormatter, chosen


class LineFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """One line that says nothing to a terminal, whatever message and fields hold: both may be a server's words."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        fields: Mapping[str, object] = getattr(record, "fields", {})
        parts = [
            at,
            record.levelname.lower(),
            printable(record.getMessage()),
            *(f"{key}={_plain(value)}" for key, value in fields.items()),
        ]
        line = " ".join(parts)
        if record.exc_info:
            line += " exception=" + _plain(self.formatException(record.exc_info))
        return line


def _plain(value: object) -> str:
    r"""As it is, or quoted.

    >>> print(_plain("shop"), _plain('a "b"'), _plain("a\r\n\x1b[2J"))
    shop "a \"b\"" "a\r\n\x1b[2J"
    """
    text = str(value)
    if text and text.isprintable() and not any(sign in ' "=\\' for sign in text):
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(sign if sign.isprintable() else _escaped(sign) for sign in quoted) + '"'


def _escaped(sign: str) -> str:
    return sign.encode("unicode_escape").decode("ascii")


def start(level: str, form: str | None = None) -> None:
    """Log to standard error from `level` on, in a form of `menura.log_format`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if chosen(form) == JSON else LineFormatter())
    root = logging.getLogger("menura")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
