"""Structure-aware mutations of a transaction's packets: most damage gets past framing and into the decoders.

Payloads are those of packets: 0x00, an event's header of 19 bytes, its body, no checksum. After most mutations the
header's size is right again. Everything comes from the given `Random`.
"""

from collections.abc import Callable, Sequence
from random import Random

from tests.agent.native.mutation import packets
from tests.fuzz.compressed import (
    COMPRESSED_ROWS_V1,
    TRANSACTION_PAYLOAD,
    inner_events,
    inner_rows,
    with_inner_events,
    with_inner_rows,
)

BODY = 20
_SIZE_AT = 10
#: the table id and flags of table maps and rows events, which damage would only cut off from their tables
_KEPT_OF_ROWS = 8
_ROWS = frozenset({*range(23, 26), *range(30, 33), 39, *range(166, 172)})
_TABLE_MAP = 19
_TYPES = (*range(43), *range(160, 173), 255)

_EDGES = (0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 31, 32, 63, 64, 65, 100, 127, 128, 250, 251, 252, 253, 254, 255)
_WIDE_EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)

Payloads = list[bytes]
_Change = Callable[[bytearray, int, Random], None]


def _flip_bit(data: bytearray, at: int, chance: Random) -> None:
    data[at] ^= 1 << chance.randrange(8)


def _set_byte(data: bytearray, at: int, chance: Random) -> None:
    data[at] = chance.choice(_EDGES)


def _random_byte(data: bytearray, at: int, chance: Random) -> None:
    data[at] = chance.randrange(256)


def _step(data: bytearray, at: int, chance: Random) -> None:
    """Lengths, offsets and counts that are off by little."""
    data[at] = (data[at] + chance.choice((-3, -2, -1, 1, 2, 3))) & 0xFF


def _set_number(data: bytearray, at: int, chance: Random) -> None:
    width = chance.choice((2, 2, 3, 4, 8))
    number = chance.choice(_WIDE_EDGES) & (1 << 8 * width) - 1
    data[at : at + width] = number.to_bytes(width, chance.choice(("little", "big")))[: len(data) - at]


def _delete(data: bytearray, at: int, chance: Random) -> None:
    del data[at : at + chance.choice((1, 1, 2, 3, 4, 8, 16, chance.randrange(1, 64)))]


def _insert(data: bytearray, at: int, chance: Random) -> None:
    data[at:at] = chance.randbytes(chance.choice((1, 1, 2, 4, 8)))


def _repeat(data: bytearray, at: int, chance: Random) -> None:
    size = chance.randrange(1, 24)
    data[at:at] = data[at : at + size] * chance.choice((1, 1, 2, 50))


def _copy(data: bytearray, at: int, chance: Random) -> None:
    start, size = chance.randrange(len(data)), chance.randrange(1, 24)
    part = data[start : start + size]
    data[at : at + len(part)] = part


def _cut_off(data: bytearray, at: int, chance: Random) -> None:
    del data[at:]


_CHANGES: tuple[_Change, ...] = (
    *(_flip_bit, _flip_bit, _set_byte, _set_byte, _random_byte, _step, _step, _set_number, _set_number),
    *(_delete, _insert, _repeat, _copy, _cut_off),
)


def mutated(payload: bytes, chance: Random, others: Sequence[Payloads]) -> bytes:
    """One event, damaged, or one inside of it; `others` are transactions to take parts from."""
    type_ = payload[5]
    if type_ == TRANSACTION_PAYLOAD and chance.random() < 0.8:
        events = inner_events(payload)
        if events:
            place = chance.randrange(len(events))
            events[place] = _damaged(events[place], chance, others)
            return with_inner_events(payload, events, compressed=chance.random() < 0.8)
    elif type_ in COMPRESSED_ROWS_V1 and chance.random() < 0.8:
        plain = inner_rows(payload)
        damaged = _damaged(plain, chance, others) if plain else b""
        if len(damaged) > BODY + _KEPT_OF_ROWS:
            return with_inner_rows(damaged)
    return _damaged(payload, chance, others)


def _damaged(payload: bytes, chance: Random, others: Sequence[Payloads]) -> bytes:
    data = bytearray(payload)
    if len(data) <= BODY:
        return bytes(data)
    type_ = data[5]
    first = BODY
    if (type_ in _ROWS or type_ == _TABLE_MAP) and chance.random() < 0.95:
        first += _KEPT_OF_ROWS
    elif chance.random() < 0.03:
        data[5] = chance.choice(_TYPES)
    if chance.random() < 0.08:
        _splice(data, type_, first, chance, others)
    change(data, first, chance)
    if chance.random() < 0.995:
        data[_SIZE_AT : _SIZE_AT + 4] = (len(data) - 1).to_bytes(4, "little")
    return bytes(data)


def change(data: bytearray, first: int, chance: Random) -> None:
    """Damage what lies behind `first`."""
    for _ in range(chance.choice((1, 1, 1, 2, 2, 4, 8))):
        if len(data) <= first:
            break
        # near the front stand counts and bitmaps
        span = len(data) - first
        at = first + chance.randrange(min(span, 12) if chance.random() < 0.3 else span)
        chance.choice(_CHANGES)(data, at, chance)


def _splice(data: bytearray, type_: int, first: int, chance: Random, others: Sequence[Payloads]) -> None:
    """The rest of the body becomes that of another event of the same type: other values under these columns."""
    donors = [other for other in chance.choice(others) if other[5:6] == bytes([type_]) and len(other) > first]
    if donors:
        donor = chance.choice(donors)
        at = chance.randrange(first, min(len(data), len(donor)) + 1) if len(data) > first else first
        data[at:] = donor[at:]


def mutate(payloads: Payloads, chance: Random, others: Sequence[Payloads]) -> tuple[Payloads, int]:
    """A transaction with one to three damaged events, and how many they are; rows events first of all."""
    changed = list(payloads)
    rows = [place for place, payload in enumerate(changed) if payload[5] in _ROWS or payload[5] == TRANSACTION_PAYLOAD]
    count = 0
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        place = chance.choice(rows) if rows and chance.random() < 0.75 else chance.randrange(len(changed))
        changed[place] = mutated(changed[place], chance, others)
        count += 1
    if chance.random() < 0.02:  # events that come twice, or in another order
        place = chance.randrange(len(changed))
        changed.insert(chance.randrange(len(changed)), changed[place])
    return changed, count


def stream_of(payloads: Payloads, chance: Random) -> bytes:
    """As packets, now and then with lengths that lie."""
    stream = b"".join(map(packets, payloads))
    if chance.random() < 0.01:
        damaged = bytearray(stream)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        return bytes(damaged)
    return stream
