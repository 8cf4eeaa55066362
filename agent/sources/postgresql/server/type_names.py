"""Types that a database has beside the built-in ones, as its catalog describes them now.

Comes in: a connection and the numbers of types that columns have. Goes out: which form their values have, and what
decides how values that are stored already are printed: an enum's labels, a composite type's attributes.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from agent.sources.postgresql.server.connection import Connection, rows
from agent.sources.postgresql.types import ColumnType, builtin_type, named_type

#: below are those that every server of a version has; none of them is made of others
FIRST_NORMAL_OBJECT_ID = 16384

#: a label's oid, the label, and the transaction that gave it that name: it may have had another one for a while
Label = tuple[int, str, int]
#: a composite type's oid, the numbers of its attributes, and the greatest number that one ever had
Composite = tuple[int, tuple[int, ...], int]

#: with the types that they are made of
_TYPES = """
WITH RECURSIVE used (oid) AS (
    SELECT DISTINCT one FROM unnest(CAST(:oids AS oid[])) AS one
    UNION
    SELECT part.oid
    FROM used JOIN pg_type AS made ON made.oid = used.oid
    CROSS JOIN LATERAL (
        SELECT made.typbasetype WHERE made.typtype = 'd'
        UNION ALL SELECT made.typelem WHERE made.typcategory = 'A' AND made.typelem <> 0
        UNION ALL SELECT rngsubtype FROM pg_range WHERE rngtypid = made.oid
        UNION ALL SELECT rngtypid FROM pg_range WHERE rngmultitypid = made.oid
        UNION ALL SELECT atttypid FROM pg_attribute
            WHERE made.typtype = 'c' AND attrelid = made.typrelid AND attnum > 0 AND NOT attisdropped
    ) AS part (oid)
    WHERE made.oid >= :first
)
SELECT type.oid, type.typtype, type.typbasetype, type.typtypmod, type.typelem,
    (SELECT array_agg(rngsubtype::bigint) FROM pg_range WHERE type.oid IN (rngtypid, rngmultitypid)),
    (SELECT array_agg(atttypid::bigint ORDER BY attnum) FROM pg_attribute
        WHERE type.typtype = 'c' AND attrelid = type.typrelid AND attnum > 0 AND NOT attisdropped),
    (SELECT array_agg(attnum::int ORDER BY attnum) FROM pg_attribute
        WHERE type.typtype = 'c' AND attrelid = type.typrelid AND attnum > 0 AND NOT attisdropped),
    (SELECT relnatts::int FROM pg_class WHERE type.typtype = 'c' AND oid = type.typrelid),
    (SELECT array_agg(oid::bigint ORDER BY oid) FROM pg_enum WHERE enumtypid = type.oid),
    (SELECT array_agg(enumlabel::text ORDER BY oid) FROM pg_enum WHERE enumtypid = type.oid),
    (SELECT array_agg(xmin::text::bigint ORDER BY oid) FROM pg_enum WHERE enumtypid = type.oid)
FROM used JOIN pg_type AS type ON type.oid = used.oid
WHERE type.oid >= :first
"""


@dataclass(frozen=True, slots=True)
class _Type:
    kind: str
    #: of a domain
    base: int
    base_modifier: int
    #: types of an array's elements, a range's bounds, a composite's attributes
    parts: tuple[int, ...]
    attributes: tuple[int, ...]
    last_attribute: int
    labels: tuple[Label, ...]


class TypeNames:
    """Those that were asked for, and what they are made of."""

    def __init__(self, found: Mapping[int, _Type]) -> None:
        self._types = found
        self._inner: dict[int, frozenset[int]] = {}

    def column_type(self, type_oid: int, modifier: int, name: str) -> ColumnType:
        """`name`: of the type with its modifier, as format_type has it."""
        found = builtin_type(type_oid, modifier)
        if found is not None:
            return found
        base, base_modifier = self.base(type_oid, modifier)
        return named_type(name, builtin_type(base, base_modifier) if base != type_oid else None)

    def base(self, type_oid: int, modifier: int) -> tuple[int, int]:
        """What a domain is made of in the end, with that one's modifier; other types are what they are."""
        while type_oid in self._types and self._types[type_oid].kind == "d":
            type_oid, modifier = self._types[type_oid].base, self._types[type_oid].base_modifier
        return type_oid, modifier

    def labels(self, type_oids: Collection[int]) -> tuple[Label, ...]:
        """Of the enums that these are, or are made of, in the order of their numbers."""
        return tuple(sorted(label for oid in self._all(type_oids) for label in self._types[oid].labels))

    def composites(self, type_oids: Collection[int]) -> tuple[Composite, ...]:
        """Likewise."""
        inner = sorted(self._all(type_oids))
        found = [(oid, self._types[oid]) for oid in inner]
        return tuple((oid, one.attributes, one.last_attribute) for oid, one in found if one.kind == "c")

    def _all(self, type_oids: Collection[int]) -> frozenset[int]:
        return frozenset[int]().union(*(self._made_of(oid) for oid in type_oids))

    def _made_of(self, type_oid: int) -> frozenset[int]:
        known = self._inner.get(type_oid)
        if known is not None:
            return known
        found: set[int] = set()
        waiting = [type_oid]
        while waiting:
            oid = waiting.pop()
            if oid in self._types and oid not in found:
                found.add(oid)
                waiting += [self._types[oid].base, *self._types[oid].parts]
        self._inner[type_oid] = frozenset(found)
        return self._inner[type_oid]


def read_type_names(connection: Connection, type_oids: Collection[int]) -> TypeNames:
    """One statement at most; inside `server_errors`."""
    wanted = sorted({oid for oid in type_oids if oid >= FIRST_NORMAL_OBJECT_ID})
    found: dict[int, _Type] = {}
    for row in rows(connection, _TYPES, oids=wanted, first=FIRST_NORMAL_OBJECT_ID) if wanted else ():
        oid, kind, base, base_modifier, element, subtypes, inner, attributes, last, label_oids, labels, named_by = row
        found[oid] = _Type(
            kind,
            base,
            base_modifier,
            tuple(part for part in (element, *(subtypes or ()), *(inner or ())) if part),
            tuple(attributes or ()),
            last or 0,
            tuple(zip(label_oids or (), labels or (), named_by or (), strict=True)),
        )
    return TypeNames(found)
