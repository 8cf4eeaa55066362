"""Result sets under hostile bytes: real shapes of every type, damaged, for the reader of a dump's rows.

A stream is made anew each time: a result set of all kinds of columns with rows at the edges of their lengths, of which
some packets are damaged. What it may lead to is a typed error, or rows that are valid Arrow data and the same however
the bytes were cut.
"""

import struct
from collections.abc import Callable
from random import Random

import pyarrow as pa

from agent.sources.mysql.columns import Column
from agent.sources.mysql.native.results import ResultError, ResultPlan, ResultReader, ResultReason
from agent.sources.mysql.snapshot.result_columns import ResultColumnInvalid, difference, parse_result_column
from agent.sources.mysql.types import ColumnType, Kind, invalid_label
from tests.agent.native.mutation import packets
from tests.fuzz.mutate import Payloads, change

RESULT_PREFIX = b"Result\n"
BOUND_COLUMNS = 2

_LABELS = ("a", 'b"', invalid_label(b"\xe4"), "ž")
_SIMPLE = [kind for kind in Kind if kind not in (Kind.DECIMAL, Kind.BIT, Kind.ENUM, Kind.SET, Kind.BINARY)]
_TYPES = (
    *(ColumnType(kind) for kind in _SIMPLE if kind not in (Kind.CHAR, Kind.VARCHAR, Kind.TEXT)),
    *(ColumnType(Kind.VARCHAR, charset=charset) for charset in ("utf8mb4", "utf8mb3", "ascii", "latin1", "sjis")),
    *(ColumnType(Kind.DECIMAL, precision=p, scale=s) for p, s in ((9, 2), (18, 18), (20, 0), (38, 10), (65, 30))),
    *(ColumnType(kind, precision=6) for kind in (Kind.TIME, Kind.DATETIME, Kind.TIMESTAMP)),
    *(ColumnType(Kind.BIT, precision=bits) for bits in (1, 9, 64)),
    *(ColumnType(kind, charset="latin1", labels=_LABELS) for kind in (Kind.ENUM, Kind.SET)),
    ColumnType(Kind.BINARY, length_bytes=5),
)
COLUMNS = tuple(Column(f'c{number}"', type_) for number, type_ in enumerate(_TYPES))

_FIXED_BYTES = {
    Kind.TINYINT: 1,
    Kind.SMALLINT: 2,
    **dict.fromkeys((Kind.MEDIUMINT, Kind.INT, Kind.FLOAT), 4),
    **dict.fromkeys((Kind.BIGINT, Kind.DOUBLE, Kind.YEAR, Kind.ENUM, Kind.SET), 8),
}
_EOF = b"\xfe\0\0\2\0"
_POINT = struct.pack("<IBI2d", 4326, 1, 1, 1.0, 2.0)


class ResultSets:
    """Makes streams; the rows that are damaged are made once."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._definitions = [_definition(chance) for _ in range(len(COLUMNS) + BOUND_COLUMNS)]
        self._rows = [_row(chance) for _ in range(64)]

    def stream(self) -> tuple[bytes, int]:
        """A damaged result set, and of how many packets."""
        chance = self._chance
        payloads: Payloads = [bytes([len(self._definitions)]), *self._definitions, _EOF]
        first_row = len(payloads)
        payloads += chance.choices(self._rows, k=chance.randrange(1, 5))
        last_row = len(payloads)
        payloads.append(b"\xff\x25\x05#70100interrupted" if chance.random() < 0.1 else _EOF)
        for _ in range(chance.choice((1, 1, 2))):
            is_row = chance.random() < 0.9
            place = chance.randrange(first_row, last_row) if is_row else chance.randrange(len(payloads))
            damaged = bytearray(payloads[place])
            change(damaged, 0 if chance.random() < 0.1 else 1, chance)
            payloads[place] = bytes(damaged)
        return b"".join(map(packets, payloads)), len(payloads)


def _definition(chance: Random) -> bytes:
    facts = (chance.randrange(400), chance.randrange(1 << 32), chance.randrange(256), chance.randrange(1 << 16))
    return b"\3def\0\1t\1t\1c\1c\x0c" + struct.pack("<HIBHBxx", *facts, chance.randrange(32))


def _row(chance: Random) -> bytes:
    nulls, values = 0, b""
    for number, column in enumerate(COLUMNS):
        if chance.random() < 0.1:
            nulls |= 4 << number
        else:
            values += _value(column.type, chance)
    values += b"".join(_counted(b"7" * chance.randrange(20)) for _ in range(BOUND_COLUMNS))
    return b"\0" + nulls.to_bytes((len(COLUMNS) + BOUND_COLUMNS + 9) // 8, "little") + values


def _value(type_: ColumnType, chance: Random) -> bytes:
    kind = type_.kind
    if kind is Kind.YEAR:
        return chance.choice((0, 1900, 1901, 2155)).to_bytes(8, "little")
    if kind in _FIXED_BYTES:
        small = kind in (Kind.ENUM, Kind.SET)
        number = chance.randrange(len(_LABELS) + 1) if small else chance.randrange(1 << 64)
        return number.to_bytes(8, "little")[: _FIXED_BYTES[kind]]
    if kind is Kind.DECIMAL:
        digits = "".join(chance.choice("0123456789") for _ in range(type_.precision - type_.scale or 1))
        fraction = "." + "5" * type_.scale if type_.scale else ""
        return _counted((chance.choice(("", "-")) + digits + fraction).encode())
    if kind is Kind.TIME:
        return _counted(
            struct.pack("<?I3BI", chance.random() < 0.5, 34, 22, 59, 59, 999999)[: chance.choice((0, 8, 12))]
        )
    if kind in (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP):
        year, day = (
            (2024, 29) if kind is Kind.TIMESTAMP else (chance.choice((0, 1970, 2024)), chance.choice((0, 28, 31)))
        )
        moment = struct.pack("<H5BI", year, 2, day, 23, 59, 59, 999999)
        return _counted(moment[: chance.choice((0, 4)) if kind is Kind.DATE else chance.choice((0, 4, 7, 11))])
    if kind is Kind.BIT:
        return _counted(bytes((type_.precision + 7) // 8 - 1) + b"\1")
    if kind is Kind.GEOMETRY:
        return _counted(_POINT)
    return _counted(
        chance.choice((b"", b"abc", "ž日".encode(), b"\x85\x40", b"x" * 251, b"y" * 70000)[: 6 if type_.charset else 2])
    )


def _counted(data: bytes) -> bytes:
    size = len(data)
    if size < 251:
        return bytes([size]) + data
    return (b"\xfc" + struct.pack("<H", size) if size < 1 << 16 else b"\xfd" + size.to_bytes(3, "little")) + data


class ResultTarget:
    """Feeds streams to readers; `guard` as in `tests.fuzz.target`."""

    def __init__(self, guard: Callable[[ResultReader], Callable[[], None]]) -> None:
        self._guard = guard
        self._plan = ResultPlan("t", "t", "", COLUMNS, BOUND_COLUMNS)

    def to_file(self, stream: bytes) -> bytes:
        return RESULT_PREFIX + stream

    def replay(self, data: bytes) -> str:
        return self._check(data.removeprefix(RESULT_PREFIX))

    def run(self, stream: bytes, *, slowly: bool) -> bool:
        """Whether it led to a typed error; `slowly` with the properties that take longer."""
        return bool(self._check(stream) if slowly else self._read(stream, at_once=False)[0])

    def _check(self, stream: bytes) -> str:
        error, tables = self._read(stream, at_once=False)
        again = self._read(stream, at_once=True)
        assert again[0] == error, (again[0], error)
        for ours, theirs in zip(tables, again[1], strict=True):
            ours.validate(full=True)
            assert repr(ours.to_pydict()) == repr(theirs.to_pydict()), "the rows depend on how the bytes were cut"
        return error

    def _read(self, stream: bytes, *, at_once: bool) -> tuple[str, list[pa.RecordBatch]]:
        reader = ResultReader(self._plan, deprecate_eof=False, batch_rows=3, most_batch_bytes=1 << 20)
        batches: list[pa.RecordBatch] = []
        at = 0
        try:
            while at < len(stream):
                size = len(stream) - at if at_once else 4 + int.from_bytes(stream[at : at + 3], "little")
                space = reader.writable()
                part = stream[at : at + min(size, len(space))]
                space[: len(part)] = part
                reader.received(len(part))
                at += len(part)
                if self._decode(reader, batches):
                    break
        except (ResultError, ResultColumnInvalid) as error:
            return f"{type(error).__name__}: {error}", batches
        return "", batches

    def _decode(self, reader: ResultReader, batches: list[pa.RecordBatch]) -> bool:
        """All that was received; whether the result set has ended."""
        while True:
            unguard = self._guard(reader)
            try:
                reason = reader.read()
            finally:
                unguard()
            if reason is ResultReason.DEFINED:
                for column, packet in zip(COLUMNS, reader.definitions, strict=False):
                    difference(column, parse_result_column(packet), mariadb=True)
            elif reason in (ResultReason.BATCH_FULL, ResultReason.END):
                assert len(reader.last_row) in (0, BOUND_COLUMNS)
                batches.append(pa.record_batch(reader.take_rows()))
            if reason in (ResultReason.END, ResultReason.ERROR_PACKET, ResultReason.NEED_BYTES):
                return reason is not ResultReason.NEED_BYTES
