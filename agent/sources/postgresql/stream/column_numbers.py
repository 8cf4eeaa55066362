"""Which columns a Relation message names: pgoutput leaves their numbers out. Pure.

Comes in: the message, and how the table looked before and looks later. Goes out: of each column its number, as far as
that is certain. A column keeps its number for its whole life, whatever it is called; a new one gets the next number,
and no number is used again; a message has the columns in the order of their numbers. So a column that is there before
and later was there in between, under one of its names or another one.
"""

from agent.sources.postgresql.server.definitions import Attribute, TableDefinition
from agent.sources.postgresql.stream.relations import Relation, RelationColumn

#: of a column whose number is not known
UNNUMBERED = -1
#: types whose values are the same bytes and the same text
TEXTS = frozenset({25, 1043})


def are_alike(type_oid: int, other: int) -> bool:
    """Whether values of one type are those of the other, in bytes and in text."""
    return type_oid == other or {type_oid, other} <= TEXTS


def gone_and_come(before: TableDefinition, now: TableDefinition) -> tuple[list[Attribute], list[Attribute]]:
    later, earlier = ({one.number for one in definition.attributes} for definition in (now, before))
    gone = [one for one in before.attributes if one.number not in later]
    return gone, [one for one in now.attributes if one.number not in earlier]


def has_gap(before: TableDefinition, now: TableDefinition) -> bool:
    """Whether a column came and went between."""
    added = sum(one.number > before.last_number for one in now.attributes)
    return now.last_number - before.last_number > added


def may_have_been_others(before: TableDefinition, now: TableDefinition) -> bool:
    """Of a message that says the same as the table of later: whether a new column may have been another one then, that
    went meanwhile or is gone by now."""
    gone, came = gone_and_come(before, now)
    return has_gap(before, now) or any(are_alike(one.type_oid, other.type_oid) for one in gone for other in came)


class ColumnNumbers:
    """Of one message."""

    def __init__(self, relation: Relation, before: TableDefinition | None, now: TableDefinition | None) -> None:
        self._relation = relation
        self._names = {column.name for column in relation.columns}
        self._before = {one.name: one for one in before.sent} if before is not None else {}
        self._now = {one.name: one for one in now.sent} if now is not None else {}
        self._is_gone, self._is_new = now is None, before is None
        both = before is not None and now is not None
        self._gone, self._came = gone_and_come(before, now) if both else ([], [])  # type: ignore[arg-type]
        self._has_gap = both and has_gap(before, now)  # type: ignore[arg-type]
        self._earlier = {one.number for one in self._before.values()}
        self._later = {one.number: one for one in self._now.values()}
        #: there before and later, and in between under a name that it has in neither
        self._renamed = [
            one
            for one in self._before.values()
            if one.number in self._later and not {one.name, self._later[one.number].name} & self._names
        ]
        stay = [at for at, column in enumerate(relation.columns) if self._stays(column.name)]
        #: places of columns that are certainly there before and later
        self.stay = frozenset(stay)
        self._last_stay = max(stay, default=-1)

    def _stays(self, name: str) -> bool:
        was, later = self._before.get(name), self._now.get(name)
        if was is None:
            return False
        if later is not None:
            return later.number == was.number
        renamed = self._later.get(was.number)
        return renamed is not None and renamed.name not in self._names

    def number(self, at: int) -> int:
        """Of the message's column at a place; `UNNUMBERED`: it is not certain."""
        column = self._relation.columns[at]
        was, later = self._before.get(column.name), self._now.get(column.name)
        is_old = at < self._last_stay  # no new one stands before an old one
        if was is not None and later is not None:
            return was.number if is_old or was.number == later.number else UNNUMBERED
        if later is not None:
            is_certain = (
                self._is_new or later.number in self._earlier or not (is_old or self._may_be(column, self._gone))
            )
            return later.number if is_certain else UNNUMBERED
        if was is not None:
            is_certain = is_old or self._is_gone or was.number in self._later or not self._may_be(column, self._came)
            return was.number if is_certain else UNNUMBERED
        return UNNUMBERED

    def _may_be(self, column: RelationColumn, others: list[Attribute]) -> bool:
        """Whether it may be one of these under another name, or one of which nothing is left."""
        hidden = [*self._renamed, *(one for one in others if one.name not in self._names)]
        return self._has_gap or any(are_alike(one.type_oid, column.type_oid) for one in hidden)
