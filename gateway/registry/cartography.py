"""Databases and tables that sources have, as their agents report them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from gateway.registry.keys import SourceKey


@dataclass(frozen=True, slots=True)
class ColumnSeen:
    name: str
    column_type: str
    nullable: bool
    charset: str = ""
    ignored: bool = False
    generated: bool = False


@dataclass(frozen=True, slots=True)
class KeySeen:
    name: str
    unique: bool
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ForeignKeySeen:
    name: str
    columns: tuple[str, ...]
    #: database and table
    parent: tuple[str, str]
    parent_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableSeen:
    """One table of a cartography."""

    database: str
    table: str
    engine: str
    collation: str
    estimated_rows: int | None
    size_bytes: int | None
    columns: tuple[ColumnSeen, ...]
    keys: tuple[KeySeen, ...]
    denied: bool
    foreign_keys: tuple[ForeignKeySeen, ...] = ()
    #: that there are beside these
    more_foreign_keys: int = 0


@dataclass(frozen=True, slots=True)
class CartographyEnd:
    """What a cartography says beside its tables."""

    flavor: str
    server_version: str
    server_identity: str
    digest: bytes
    #: `table_hash` of all tables that there are; None: they were not told, but those that differ
    names: Collection[int] | None


def table_hash(database: str, table: str) -> int:
    """64 bits: of half a million tables two have the same with a probability below 1e-8."""
    return int.from_bytes(blake2b(f"{len(database)}:{database}{table}".encode(), digest_size=8).digest())


class CartographyRegistry(Protocol):
    def cartography_digest(self, key: SourceKey) -> bytes:
        """Of the cartography that is recorded whole; empty: none."""

    def begin_cartography(self, key: SourceKey, base: bytes) -> bool:
        """Tables are about to be told: all, or those that differ from the cartography of digest `base`.

        False: another one is recorded, or nobody knows the source. From here to its end no cartography counts as whole.
        """

    def record_tables(self, key: SourceKey, tables: Sequence[TableSeen], gone: Sequence[tuple[str, str]]) -> None:
        """Some of those that there are, and of those that are no longer there; what is recorded of others stays.

        A table that is gone is marked, its sync kept.
        """

    def end_cartography(self, key: SourceKey, told: CartographyEnd, at_us: int) -> None:
        """All was told. Tables that are not among its names are gone."""
