"""A source's tables in messages of bounded size. Pure: cards in, parts out, as they come."""

from collections.abc import Iterable, Iterator

from menura.v1.catalog_pb2 import Cartography, TableCard

#: of one message, well below gRPC's usual 4 MiB
PART_BYTES = 2 << 20


def in_parts(head: Cartography, cards: Iterable[TableCard]) -> Iterator[Cartography]:
    """`head` is what each part begins with. There is at least one part; the last one is marked.

    >>> head = Cartography(source="shop")
    >>> [(part.source, part.last) for part in in_parts(head, [])]
    [('shop', True)]
    """
    part, size_bytes = _copy(head), 0
    for card in cards:
        card_bytes = card.ByteSize()
        if part.tables and size_bytes + card_bytes > PART_BYTES:
            yield part
            part, size_bytes = _copy(head), 0
        part.tables.append(card)
        size_bytes += card_bytes
    part.last = True
    yield part


def _copy(head: Cartography) -> Cartography:
    part = Cartography()
    part.CopyFrom(head)
    return part
