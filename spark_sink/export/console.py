"""Changes of tables as lines for a person at a terminal: one a change, with colours, no wider than the terminal.

Comes in: `Step`s whose values are texts (`fields.readable`). Goes out: lines: the time of the commit at the source
(UTC), the operation, the table where there are several, the key, and the columns; of an update those that differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO

from menura.errors import printable

from spark_sink.export.envelope import CREATE, DELETE, READ, TRUNCATE, UPDATE, Message
from spark_sink.export.feed import Step, TableStep
from spark_sink.export.rows import Struct

_COLOURS = {CREATE: "32", UPDATE: "33", DELETE: "31", READ: "36", TRUNCATE: "35"}
_DIM = "2"


@dataclass(frozen=True, slots=True)
class Filter:
    #: each of them must be so, before or after
    values: Sequence[tuple[str, str]] = ()
    operations: frozenset[str] = frozenset(_COLOURS)

    def lets_through(self, message: Message) -> bool:
        if message.value is None or message.op not in self.operations:
            return False
        images = [image for image in (message.value["before"], message.value["after"]) if image is not None]
        return all(any(_shown(image.get(name)) == value for image in images) for name, value in self.values)


class ConsoleOutput:
    def __init__(self, stream: TextIO, chosen: Filter, *, colours: bool, width: int | None, with_table: bool) -> None:
        """`width`: of lines; None: as long as they are."""
        self._stream = stream
        self._chosen = chosen
        self._colours = colours
        self._width = width
        self._with_table = with_table

    def write(self, step: Step) -> None:
        for of, message in step.messages():
            if self._chosen.lets_through(message):
                self._stream.write(self._line(of, message) + "\n")
        self._stream.flush()

    def _line(self, of: TableStep, message: Message) -> str:
        assert message.value is not None
        table = of.envelope.table
        at = datetime.fromtimestamp(message.value["source"]["ts_us"] / 1_000_000, UTC)
        name = f"{table.database}.{table.table} " if self._with_table else ""
        rest = f"{name}{' '.join(_words(message))}"
        time = f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03}"
        rest = printable(rest)
        if self._width is not None and len(rest) > (room := max(self._width - len(time) - 3, 1)):
            rest = f"{rest[: room - 1]}…"
        return f"{self._coloured(_DIM, time)} {self._coloured(_COLOURS[message.op], f'{message.op} {rest}')}"

    def _coloured(self, colour: str, text: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colours else text


def _words(message: Message) -> list[str]:
    assert message.value is not None
    before, after = message.value["before"], message.value["after"]
    if message.op == TRUNCATE:
        return ["all rows are gone"]
    key = message.key or {}
    words = [f"{name}={_shown(value)}" for name, value in key.items()]
    image: Struct = after or before
    for name, value in image.items():
        if name in key:
            continue
        if before is not None and after is not None:
            if before.get(name) != value:
                words.append(f"{name}: {_shown(before.get(name))} → {_shown(value)}")
        else:
            words.append(f"{name}={_shown(value)}")
    return words


def _shown(value: object) -> str:
    return "NULL" if value is None else str(value)
