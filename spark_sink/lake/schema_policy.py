"""What a lake does with changes of its sources' definitions, table by table: Flink CDC's policies.

Comes in: the sink's rules, a batch's events and files, and the current state's columns. Goes out: the events and the
`Definition`s as the current state follows them, and its `Departure`: in what it is not its source's table. The table's
property `menura.departure` keeps that; it is written before what it tells of, so a kill between says more than is,
until the replay. The changelog follows its source under each policy: what the current state leaves out is there.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum

import pyarrow as pa
from deltalake import DeltaTable
from menura.naming import set_aside

from spark_sink.errors import EventUnreadable, SchemaChanged, SchemaNotFollowed
from spark_sink.lake.delta_table import Layout, configuration_of, read_layout, schema_of
from spark_sink.lake.schema_change import Definition, is_own, retyped
from spark_sink.lake.table_options import NO_OPTIONS, TableOptions
from spark_sink.landed.default_values import nothing
from spark_sink.landed.event_columns import event_columns
from spark_sink.landed.lake_schema import format_type, wider
from spark_sink.landed.landed_file import LandedPart
from spark_sink.work import CutEvent, TableId, last_rule

PROPERTY = "menura.departure"
#: of a list that is told
MOST_NAMES = 20

#: events of statements that change a table's definition, or take all of its rows away
STATEMENTS = ("CREATED", "ALTERED", "RENAMED", "DROPPED", "TRUNCATED", "SWAPPED")
#: events with which a table begins anew, its definition with it
BEGINNINGS = ("DUMP_STARTED", "DUMPED")

Pending = Sequence[tuple[int, LandedPart | CutEvent]]


class SchemaPolicy(StrEnum):
    #: all is followed
    EVOLVE = "evolve"
    #: the same; a change that can't be followed leaves the columns as they are
    TRY_EVOLVE = "try_evolve"
    #: all is followed that takes nothing away
    LENIENT = "lenient"
    #: none is followed
    IGNORE = "ignore"
    #: any stops the table
    EXCEPTION = "exception"

    @property
    def keeps(self) -> bool:
        """Whether columns and rows stay that a statement takes away."""
        return self in (SchemaPolicy.LENIENT, SchemaPolicy.IGNORE)


@dataclass(frozen=True, slots=True)
class SchemaRules:
    """Which policy tables have: the last rule that a table's name fits counts; without one it is `evolve`.

    >>> rules = SchemaRules.parse(["lenient", "acme/shop/shop.audit*=exception"])
    >>> rules.of(TableId("acme", "shop", "shop", "orders")).value
    'lenient'
    >>> rules.of(TableId("acme", "shop", "shop", "audit_2026")).value
    'exception'
    """

    rules: tuple[tuple[str, SchemaPolicy], ...] = ()

    @classmethod
    def parse(cls, words: Sequence[str]) -> "SchemaRules":
        """From `[TENANT/SOURCE/DATABASE.TABLE=]POLICY`. Raises ValueError."""
        return cls(tuple(map(_rule, words)))

    def of(self, table: TableId) -> SchemaPolicy:
        return last_rule(self.rules, table, SchemaPolicy.EVOLVE)


EVOLVE_ALL = SchemaRules()


def _rule(word: str) -> tuple[str, SchemaPolicy]:
    pattern, _, policy = word.rpartition("=")
    try:
        return pattern or "*", SchemaPolicy(policy)
    except ValueError:
        raise ValueError(f"{word!r} ends in none of {', '.join(SchemaPolicy)}") from None


@dataclass(frozen=True, slots=True)
class Departure:
    """In what a current state is not its source's table, since its policy lets it."""

    policy: str = ""
    #: columns of the source that it does not follow
    not_followed: tuple[str, ...] = ()
    #: columns that it has and the source has not, with former values
    kept: tuple[str, ...] = ()
    #: the kind of the event that took all rows away at the source
    rows_stay: str = ""

    @property
    def is_any(self) -> bool:
        return bool(self.not_followed or self.kept or self.rows_stay)

    @property
    def words(self) -> str:
        """For people; '' where the tables are alike.

        >>> Departure("lenient", kept=("note",), rows_stay="TRUNCATED").words
        'columns stay with former values: note; rows stay from before the table was truncated'
        """
        said = []
        if self.not_followed:
            said.append(f"columns of the source that are not followed: {_listed(self.not_followed)}")
        if self.kept:
            said.append(f"columns stay with former values: {_listed(self.kept)}")
        if self.rows_stay:
            said.append(f"rows stay from before the table was {self.rows_stay.lower()}")
        return "; ".join(said)


def told(policy: str, departure: str) -> str:
    """What is told of a table: its policy, if that is not the default, and in what it is not its source's table.

    >>> told("evolve", ""), told("exception", ""), told("lenient", "rows stay")
    ('', 'exception', 'lenient: rows stay')
    """
    if departure:
        return f"{policy}: {departure}"
    return "" if policy == SchemaPolicy.EVOLVE else policy


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def read_departure(current: DeltaTable) -> Departure:
    facts = json.loads(configuration_of(current).get(PROPERTY, "{}"))
    not_followed, kept = (tuple(facts.get(name, ())) for name in ("not_followed", "kept"))
    return Departure(facts.get("policy", ""), not_followed, kept, facts.get("rows_stay", ""))


def write_departure(current: DeltaTable, departure: Departure) -> None:
    """In a commit of its own, unless it is there already."""
    told = departure if departure.is_any else Departure()
    if told != read_departure(current):
        current.alter.set_table_properties(
            {PROPERTY: json.dumps(asdict(told), ensure_ascii=False)}, raise_if_not_exists=False
        )


def check_unchanged(table: TableId, pending: Pending, held: DeltaTable | None, merged_gsn: int) -> None:
    """Of `exception`: raises `SchemaChanged` where anything pending would change the table that the lake has."""
    events = [each for _, each in pending if isinstance(each, CutEvent) and each.first_gsn > merged_gsn]
    anew_gsn = max((each.first_gsn for each in events if begins_anew(each)), default=0)
    layout = read_layout(held) if held is not None and not anew_gsn else None
    stops = (each for each in events if each.event.kind in STATEMENTS and each.first_gsn > anew_gsn)
    for seen in stops:
        if layout is None and seen.event.kind == "CREATED":
            continue
        raise _changed(table, seen.cut, seen.event.statement or f"its source said {seen.event.kind}")
    for cut, part in pending:
        if isinstance(part, CutEvent) or part.file.last_gsn <= anew_gsn:
            continue
        found = (part.shape.columns, part.shape.key)
        if layout is not None and found != (layout.columns, layout.key):
            raise _changed(table, cut, f"{part.file.path} has other columns than the table")
        layout = Layout("", *found)


def begins_anew(seen: CutEvent) -> bool:
    """Whether the table is emptied with this event, to begin anew."""
    return seen.event.kind in BEGINNINGS and seen.event.removes_rows


def _changed(table: TableId, cut: int, statement: str) -> SchemaChanged:
    return SchemaChanged(
        "following a change of the table's definition",
        f"its policy for changes of the schema is `exception`, and there is one: {statement}",
        data="Nothing of the change was applied; the table stays at its last version; other tables go on",
        remedy="To follow it, start the sink with another --schema-changes for the table, then run:"
        f" {table.retry}; or have the table begin anew as it is now: {table.resync}",
        **table.where(cut),
    )


@dataclass(frozen=True, slots=True)
class Following:
    """How one table's current state follows what a batch brings."""

    table: TableId
    policy: SchemaPolicy
    #: as the current state follows it
    pending: Pending
    #: as the changelog follows it
    logged: Pending
    options: TableOptions = NO_OPTIONS
    #: by the numbers of events that take rows away at the source alone, their kinds
    rows_stay: dict[int, str] = field(default_factory=dict)
    #: the same where these rows stay as deleted ones
    marked: dict[int, str] = field(default_factory=dict)
    #: columns of the source of which this version can't tell the type
    unreadable: tuple[str, ...] = ()

    def definition(self, current: DeltaTable, wanted: Definition) -> tuple[Definition, Departure]:
        """What is followed of a definition, and in what the table then departs. Raises `SchemaNotFollowed`."""
        before, held, departed = read_layout(current), schema_of(current), read_departure(current)
        left: tuple[str, ...] = ()
        followed = wanted
        if self.policy is SchemaPolicy.IGNORE:
            followed, left = self._ignoring(wanted, held)
        elif departed.not_followed:
            followed = _with_unknown(wanted, departed.not_followed)
        kept: tuple[str, ...] = ()
        if self.policy.keeps:
            aside = _set_aside(followed, before, held) if self.policy is SchemaPolicy.LENIENT else {}
            followed = replace(followed, keeps=True, aside=aside)
            live = {name.lower() for name in followed.layout.columns}
            names = dict.fromkeys((*departed.kept, *before.columns, *aside))
            kept = tuple(name for name in names if name.lower() not in live)
        elif departed.kept:
            followed = replace(followed, forgets=True)
        unfollowed = tuple(dict.fromkeys((*left, *self.unreadable)))
        return followed, Departure(self.policy, unfollowed, kept, departed.rows_stay)

    def fallback(self, current: DeltaTable, wanted: Definition) -> tuple[Definition, Departure]:
        """The same where the definition could not be followed: the columns stay as they are."""
        ignoring = replace(self, policy=SchemaPolicy.IGNORE)
        followed, departure = ignoring.definition(current, wanted)
        return followed, replace(departure, policy=self.policy)

    def _ignoring(self, wanted: Definition, held: pa.Schema) -> tuple[Definition, tuple[str, ...]]:
        """The part of a definition that the lake's columns take as they are, and the columns that are left out."""
        types = {found.name.lower(): found.type for found in held}
        left = tuple(
            name
            for name in wanted.layout.columns
            if name.lower() not in types
            or wider(types[name.lower()], wanted.schema.field(name).type) != types[name.lower()]
        )
        if not left:
            return wanted, left
        needed = [name for name in left if name in (*wanted.layout.key, wanted.layout.row_end)]
        if needed:
            raise SchemaNotFollowed(
                "following a change of the table's definition",
                f"the source tells rows apart by {_listed(needed)}, which the lake's table does not follow"
                f" (--schema-changes {self.policy})",
                data="The table stays at its last version; other tables go on",
                remedy="Start the sink with --schema-changes evolve or lenient for the table, then run:"
                f" {self.table.retry}",
                **self.table.where(max(cut for cut, _ in self.pending)),
            )
        gone = {name.lower() for name in left}
        layout = wanted.layout
        places = [place for place, name in enumerate(layout.columns) if name.lower() not in gone]
        left_of = [tuple(of[place] for place in places) if of else () for of in (layout.types, layout.source_types)]
        columns = tuple(layout.columns[place] for place in places)
        return (
            replace(
                wanted,
                layout=replace(layout, columns=columns, types=left_of[0], source_types=left_of[1]),
                schema=pa.schema([found for found in wanted.schema if found.name.lower() not in gone]),
                renamed={name: old for name, old in wanted.renamed.items() if name not in gone},
                added={name: value for name, value in wanted.added.items() if name not in gone},
                source_names={name: told for name, told in wanted.source_names.items() if name not in gone},
            ),
            left,
        )


def following(table: TableId, policy: SchemaPolicy, pending: Pending, options: TableOptions = NO_OPTIONS) -> Following:
    """How the current state follows these files and events."""
    unreadable: tuple[str, ...] = ()
    if policy is SchemaPolicy.TRY_EVOLVE:
        pending, unreadable = _readable(table, pending)
    found = Following(table, policy, pending, pending, options, unreadable=unreadable)
    if policy.keeps:
        kept, kinds = _without_removals(pending)
        return replace(found, pending=kept, rows_stay=kinds)
    if options.soft_delete:
        kept, kinds = _without_removals(pending)
        return replace(found, pending=kept, marked=kinds)
    return found


def _without_removals(pending: Pending) -> tuple[Pending, dict[int, str]]:
    """Statements take no row away; and the kinds of those that would, by their numbers."""
    found: list[tuple[int, LandedPart | CutEvent]] = []
    kinds: dict[int, str] = {}
    for cut, each in pending:
        if isinstance(each, CutEvent) and each.event.removes_rows and each.event.kind in STATEMENTS:
            kinds[each.first_gsn] = each.event.kind
            found.append((cut, replace(each, event=replace(each.event, removes_rows=False))))
        else:
            found.append((cut, each))
    return found, kinds


def _readable(table: TableId, pending: Pending) -> tuple[Pending, tuple[str, ...]]:
    """Events without what this version can't read of them, and those columns."""
    found: list[tuple[int, LandedPart | CutEvent]] = []
    unreadable: dict[str, None] = {}
    for cut, each in pending:
        seen = each
        if isinstance(each, CutEvent):
            names, seen = _without_unreadable(table, each)
            unreadable |= dict.fromkeys(names)
        else:
            unreadable |= dict.fromkeys(each.shape.left_out)
        found.append((cut, seen))
    return found, tuple(unreadable)


def _without_unreadable(table: TableId, seen: CutEvent) -> tuple[list[str], CutEvent]:
    try:
        event_columns(table, seen)
    except EventUnreadable:
        columns = [column for column in seen.event.columns if _is_known(column.arrow_format)]
        told = {column.name for column in columns}
        plain = tuple(
            replace(column, earlier_rows="unknown", earlier_text="") if column.earlier_rows else column
            for column in columns
        )
        names = [column.name for column in seen.event.columns if column.name not in told]
        return names, replace(seen, event=replace(seen.event, columns=plain))
    return [], seen


def _is_known(arrow_format: str) -> bool:
    try:
        format_type(arrow_format)
    except KeyError:
        return False
    return True


def _with_unknown(wanted: Definition, not_followed: Sequence[str]) -> Definition:
    """Columns that come only now: what earlier rows hold there stands in the changelog alone."""
    names = {name.lower() for name in not_followed}
    unknown = {
        name.lower(): nothing(wanted.schema.field(name).type, is_unknown=True)
        for name in wanted.layout.columns
        if name.lower() in names and name.lower() not in wanted.renamed
    }
    return replace(wanted, added={**unknown, **wanted.added})


def _set_aside(wanted: Definition, before: Layout, held: pa.Schema) -> dict[str, str]:
    """Other names for columns whose own another one takes: of the later one the lake's name so far."""
    names = {found.name.lower(): found.name for found in held if not is_own(found.name)}
    live = {name.lower() for name in before.columns}
    moved = {old.lower() for old in wanted.renamed.values()}
    taken = [*wanted.added, *(name for name in wanted.renamed if name not in live), *retyped(held, wanted)]
    aside: dict[str, str] = {}
    for name in dict.fromkeys(taken):
        if name in names and name not in moved:
            aside[_free_name(names[name], names)] = names[name]
    return aside


def _free_name(name: str, names: dict[str, str]) -> str:
    return next(found for found in _numbered(name) if found.lower() not in names)


def _numbered(name: str) -> Iterator[str]:
    number = 1
    while True:
        yield set_aside(name, number)
        number += 1
