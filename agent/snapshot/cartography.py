"""A source's tables in messages of bounded size: all of them, or what differs from those that the gateway has.

Comes in: cards of all tables, as they are read, and the digest of the cartography that the gateway has. Goes out:
parts. Where that is the one which was sent last, they have the tables that are new, other or gone since. Of each table
that was sent a digest is kept, 16 bytes beside its name. Nothing is durable: an agent that begins tells everything.

A server's estimates change all the time. They count as the same while they stay within a quarter or so.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from menura.v1.catalog_pb2 import Cartography, TableCard
from menura.v1.config_pb2 import TableName

#: of one table; more are counted
MAX_FOREIGN_KEYS = 256
#: of one message, well below gRPC's usual 4 MiB
PART_BYTES = 2 << 20
DIGEST_BYTES = 16
#: leading bits of an estimate that count
_ESTIMATE_BITS = 3

Table = tuple[str, str]
#: what each message begins with, and all tables
SendTables = Callable[[Cartography, Iterable[TableCard]], None]


def bounded(card: TableCard) -> TableCard:
    """With as many foreign keys as a card takes.

    >>> from menura.v1.catalog_pb2 import ForeignKeyCard
    >>> card = bounded(TableCard(foreign_keys=[ForeignKeyCard()] * 300))
    >>> len(card.foreign_keys), card.more_foreign_keys
    (256, 44)
    """
    card.more_foreign_keys = max(0, len(card.foreign_keys) - MAX_FOREIGN_KEYS)
    del card.foreign_keys[MAX_FOREIGN_KEYS:]
    return card


@dataclass(frozen=True, slots=True)
class Sent:
    """A cartography that was sent."""

    digest: bytes = b""
    #: of each table's card
    cards: Mapping[Table, bytes] = field(default_factory=dict)


class Telling:
    """One cartography on its way: iterate over `parts`, then `sent` is what the next one can be told from."""

    def __init__(self, head: Cartography, cards: Iterable[TableCard], former: Sent) -> None:
        """`head` is what each part begins with; `former`: what the gateway has, empty where it shall get all."""
        self._head = Cartography()
        self._head.CopyFrom(head)
        self._head.base = former.digest
        self._cards = cards
        self._former = former
        self._digests: dict[Table, bytes] = {}

    def parts(self) -> Iterator[Cartography]:
        """At least one; the last one is marked.

        >>> head, orders = Cartography(source="shop"), TableCard(table=TableName(database="shop", table="orders"))
        >>> whole = Telling(head, [orders], Sent())
        >>> [(len(part.tables), part.last) for part in whole.parts()]
        [(1, True)]
        >>> [(len(part.tables), len(part.gone), part.last) for part in Telling(head, [], whole.sent).parts()]
        [(0, 1, True)]
        """
        part, size_bytes = self._new_part(), 0
        for card in self._other():
            card_bytes = card.ByteSize()
            if part.tables and size_bytes + card_bytes > PART_BYTES:
                yield part
                part, size_bytes = self._new_part(), 0
            part.tables.append(card)
            size_bytes += card_bytes
        for database, table in self._former.cards.keys() - self._digests.keys():
            if size_bytes > PART_BYTES:
                yield part
                part, size_bytes = self._new_part(), 0
            name = TableName(database=database, table=table)
            part.gone.append(name)
            size_bytes += name.ByteSize()
        part.last = True
        part.digest = self.sent.digest
        yield part

    @property
    def sent(self) -> Sent:
        """Of all tables that were read: complete after the last part."""
        # A sum, so that the order in which a server tells its tables is nothing.
        total = sum(int.from_bytes(digest) for digest in self._digests.values()) % (1 << 8 * DIGEST_BYTES)
        return Sent(total.to_bytes(DIGEST_BYTES), self._digests)

    def _other(self) -> Iterator[TableCard]:
        for card in self._cards:
            table = card.table.database, card.table.table
            digest = self._digests[table] = _digest(card)
            if self._former.cards.get(table) != digest:
                yield card

    def _new_part(self) -> Cartography:
        part = Cartography()
        part.CopyFrom(self._head)
        return part


def _digest(card: TableCard) -> bytes:
    rough = TableCard()
    rough.CopyFrom(card)
    for name in ("estimated_rows", "size_bytes"):
        if card.HasField(name):
            setattr(rough, name, _rough(getattr(card, name)))
    return blake2b(rough.SerializeToString(deterministic=True), digest_size=DIGEST_BYTES).digest()


def _rough(estimate: int) -> int:
    """Its leading bits.

    >>> _rough(1000), _rough(1020), _rough(1030), _rough(3)
    (896, 896, 1024, 3)
    """
    shift = max(0, estimate.bit_length() - _ESTIMATE_BITS)
    return estimate >> shift << shift
