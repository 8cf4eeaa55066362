"""What became of a table between two looks at its definition, as the gateway hears it. Pure: values in, events out.

pgoutput tells a table's columns before its first row, and again when its definition may have changed; it tells neither
the columns' numbers nor the statement. So a Relation message is read beside the definition that is known (`before`) and
the one that the catalog has by now (`now`), which may be later than the message:

- `told_by` says how the table looked when the message was written: the columns get their numbers, which stay the same
  through renames and tell a column from a later one of its name. A table that looks as before counts as unchanged; that
  columns were dropped and added again shows a later look. Ignored columns may be left out of messages, by the
  publication's column list, and generated ones may be in them, so neither says that a table has changed.
- `altered` says what a change of columns leaves in the lake's rows: a renamed column keeps its values, a new one holds
  what the server kept for older rows, one of another type is printed otherwise.
- `rewritten` says whether the rows themselves may be others: the table's files, an enum's labels. Only a look that the
  stream has passed may be asked this: a row that the stream reads afterwards must not be of before the rewriting.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from menura.v1 import changes_pb2

from agent.filter import Verdict
from agent.sources.postgresql.columns import Column
from agent.sources.postgresql.server.definitions import FULL, Attribute, TableDefinition, restated
from agent.sources.postgresql.server.missing_values import Missing, MissingValue, Unrepresentable
from agent.sources.postgresql.stream.column_numbers import UNNUMBERED, ColumnNumbers, are_alike
from agent.sources.postgresql.stream.relations import Relation, RelationColumn
from agent.sources.postgresql.types import ColumnType, arrow_format, builtin_type, named_type

#: in place of the files of a table that was emptied: which ones it has since then is not known
EMPTIED = 0
_PARTITIONED = "p"


@dataclass(frozen=True, slots=True)
class Told:
    """How a table looked when a Relation message was written."""

    definition: TableDefinition
    #: as it is in the catalog
    is_now: bool
    #: it is not known of all columns which ones they are: a later look has to have the rows read again
    is_unfollowed: bool = False
    #: columns that may be ignored ones under a name that they have no more
    revealed: tuple[str, ...] = ()


def told_by(relation: Relation, before: TableDefinition | None, now: TableDefinition | None, verdict: Verdict) -> Told:
    """`before` and `now` are of the same oid; what else than columns may have changed is that of `before`."""
    if before is not None and is_told(relation, before, verdict) and not _are_shown(relation, before, now):
        return Told(before, is_now=now is not None and now.attributes == before.attributes)
    if now is not None and is_told(relation, now, verdict) and (before is None or not replaced_columns(before, now)):
        if before is None:
            return Told(now, is_now=True)
        kept = replace(now, **_looked_at(before))
        return Told(kept, is_now=True)
    return _between(_without_generated(relation, now or before), before, now, verdict)


def _looked_at(definition: TableDefinition) -> dict[str, Any]:
    """What looks alone compare: it stays that of the last one."""
    names = ("storage", "labels", "composites", "written_by", "toast")
    return {name: getattr(definition, name) for name in names}


def is_told(relation: Relation, definition: TableDefinition, verdict: Verdict) -> bool:
    """Whether a message says nothing else than the definition, of the columns that leave the host."""
    sent = [column for column in _without_generated(relation, definition).columns if not verdict.ignores(column.name)]
    told = [(column.name, column.type_oid, column.modifier) for column in sent]
    held = [(one.name, one.type_oid, one.modifier) for one in definition.sent if not verdict.ignores(one.name)]
    identity = {column.name for column in sent if column.identity}
    return (
        (relation.oid, relation.table, relation.replica_identity)
        == (definition.oid, definition.table, definition.replica_identity)
        and told == held
        and (relation.replica_identity == FULL or _is_identity(identity, definition))
    )


def _is_identity(told: set[str], definition: TableDefinition) -> bool:
    """A partitioned table's identity is what all of its partitions log, which may be less."""
    held = set(definition.identity)
    return held <= told if definition.kind == _PARTITIONED else held == told


def _without_generated(relation: Relation, definition: TableDefinition | None) -> Relation:
    generated = {one.name for one in definition.attributes if one.generated} if definition is not None else set()
    if not generated:
        return relation
    return replace(relation, columns=tuple(column for column in relation.columns if column.name not in generated))


def _are_shown(relation: Relation, before: TableDefinition, now: TableDefinition | None) -> bool:
    """Whether the message has columns that were generated and are ordinary ones by now: their rows are read from here
    on, since no other message need follow."""
    ordinary = {one.number for one in _all(now)}
    names = {one.name for one in before.attributes if one.generated and one.number in ordinary}
    return any(column.name in names for column in relation.columns)


def _between(relation: Relation, before: TableDefinition | None, now: TableDefinition | None, verdict: Verdict) -> Told:
    """The table has changed since then, or is gone."""
    known = ColumnNumbers(relation, before, now)
    attributes = [_attribute(column, known.number(place), before, now) for place, column in enumerate(relation.columns)]
    numbers = [attribute.number for attribute in attributes]
    is_unfollowed = numbers != sorted(set(numbers)) or UNNUMBERED in numbers
    if is_unfollowed:
        attributes = [
            attribute if place in known.stay else replace(attribute, number=UNNUMBERED - place)
            for place, attribute in enumerate(attributes)
        ]
    told = {column.name for column in relation.columns}
    names = tuple(column.name for column in relation.columns if column.identity)
    base = before or now
    primary_key = base.primary_key if base is not None else ()
    if relation.replica_identity == "d":
        primary_key = _ordered(names, primary_key, now.primary_key if now is not None else ())
    made = TableDefinition(
        oid=relation.oid,
        schema=relation.schema,
        name=relation.name,
        kind=base.kind if base is not None else "r",
        file_node=base.file_node if base is not None else 0,
        replica_identity=relation.replica_identity,
        attributes=_with_left_out(attributes, base, verdict),
        primary_key=primary_key,
        identity=names,
        last_number=max([*numbers, before.last_number if before is not None else 0]),
    )
    if base is not None:
        made = replace(made, **_looked_at(base))
    hidden = {one.type_oid for one in _all(before) if verdict.ignores(one.name) and one.name not in told}
    unknown = [column for column, number in zip(relation.columns, numbers, strict=True) if number == UNNUMBERED]
    revealed = tuple(one.name for one in unknown if any(are_alike(one.type_oid, oid) for oid in hidden))
    return Told(made, is_now=False, is_unfollowed=is_unfollowed and before is not None, revealed=revealed)


def _with_left_out(
    attributes: Sequence[Attribute], base: TableDefinition | None, verdict: Verdict
) -> tuple[Attribute, ...]:
    """With those of `base` that messages need not have: one that is renamed is known by its number."""
    whole = list(attributes)
    names, numbers = {one.name for one in whole}, {one.number for one in whole}
    for one in base.attributes if base is not None else ():
        if (one.generated or verdict.ignores(one.name)) and one.name not in names and one.number not in numbers:
            place = next((place for place, other in enumerate(whole) if other.number > one.number), len(whole))
            whole.insert(place, one)
    return tuple(whole)


def _ordered(names: Sequence[str], *keys: Sequence[str]) -> tuple[str, ...]:
    """In the order of a key that has the same columns; the message has that of the table."""
    return next((tuple(key) for key in keys if set(key) == set(names)), tuple(names))


def _attribute(
    column: RelationColumn, number: int, before: TableDefinition | None, now: TableDefinition | None
) -> Attribute:
    was, later = _find(before, column.name), _find(now, column.name)
    found = [one for one in (was, later) if one is not None and _type_of(one) == (column.type_oid, column.modifier)]
    missing: MissingValue = Missing.UNKNOWN
    if later is not None and later.number == number:
        missing = later.missing
    return Attribute(
        number=number,
        name=column.name,
        type=_column_type(column, [*found, *_all(before), *_all(now)]),
        type_oid=column.type_oid,
        modifier=column.modifier,
        not_null=False,
        generated=False,
        missing=missing,
        collation=found[-1].collation if found else "",
    )


def _find(definition: TableDefinition | None, name: str) -> Attribute | None:
    return next((one for one in _all(definition) if one.name == name), None)


def _all(definition: TableDefinition | None) -> tuple[Attribute, ...]:
    return definition.sent if definition is not None else ()


def _type_of(attribute: Attribute) -> tuple[int, int]:
    return attribute.type_oid, attribute.modifier


def _column_type(column: RelationColumn, known: Sequence[Attribute]) -> ColumnType:
    built_in = builtin_type(column.type_oid, column.modifier)
    if built_in is not None:
        return built_in
    alike = [one.type for one in known if _type_of(one) == (column.type_oid, column.modifier)]
    alike += [one.type for one in known if one.type_oid == column.type_oid]
    return alike[0] if alike else named_type(f"type {column.type_oid}")


# --- what is sent


def columns_of(definition: TableDefinition, verdict: Verdict) -> tuple[Column, ...]:
    """The columns that leave the host, in order.

    >>> columns_of(TableDefinition(7, "shop", "t", "r", 9, "d", (), (), ()), Verdict(allowed=True))
    ()
    """
    columns = zip(definition.sent, definition.columns, strict=True)
    return tuple(column for one, column in columns if not verdict.ignores(one.name))


def columns_after(
    definition: TableDefinition,
    verdict: Verdict,
    added: Mapping[str, MissingValue] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> list[changes_pb2.ColumnAfter]:
    """The same as an event has them; `renamed`: new name to old."""
    return [
        _column_after(column, (renamed or {}).get(column.name, ""), added or {})
        for column in columns_of(definition, verdict)
    ]


def _column_after(column: Column, renamed_from: str, added: Mapping[str, MissingValue]) -> changes_pb2.ColumnAfter:
    message = changes_pb2.ColumnAfter(
        name=column.name,
        source_type=str(column.type),
        arrow_format=arrow_format(column.type),
        key=column.key,
        renamed_from=renamed_from,
    )
    if column.name not in added:
        return message
    match added[column.name]:
        case None:
            message.is_null = True
        case Missing.UNKNOWN:
            message.is_unknown = True
        case Unrepresentable(text):
            message.unrepresentable = text
        case text:
            assert isinstance(text, str)
            message.text = text
    return message


# --- what a change does


@dataclass(frozen=True, slots=True)
class Altered:
    """A change of columns."""

    columns: list[changes_pb2.ColumnAfter]
    #: why rows of before are others than the lake's; empty: they are not
    why: str = ""
    #: rows may have been written anew with other values: their files decide
    is_retyped: bool = False
    #: columns that the filter ignores have names now that it does not
    revealed: tuple[str, ...] = field(default=())


def altered(
    before: TableDefinition, after: TableDefinition, verdict: Verdict, *, has_same_files: bool = True
) -> Altered | None:
    """What the gateway hears of other columns; None: they are the same to it.

    `has_same_files`: the table has had the same files ever since, as far as anybody knows.
    """
    was = {one.number: (one, column.name) for one, column in zip(before.sent, before.columns, strict=True)}
    added: dict[str, MissingValue] = {}
    renamed: dict[str, str] = {}
    why: list[str] = []
    revealed: list[str] = []
    is_retyped = False
    computed = {one.number for one in before.attributes if one.generated}
    for column, sent in zip(after.sent, after.columns, strict=True):
        if verdict.ignores(column.name):
            continue
        earlier, name = was.get(column.number, (None, ""))
        if earlier is None and column.number in computed:
            added[sent.name] = Missing.UNKNOWN
            why.append(f"column {column.name}: it was computed, and was not sent")
            if verdict.keeps_columns:
                revealed.append(column.name)
        elif earlier is None:
            added[sent.name] = column.missing if has_same_files else Missing.UNKNOWN
            is_retyped = is_retyped or added[sent.name] is Missing.UNKNOWN
        elif verdict.ignores(earlier.name):
            revealed.append(column.name)
        else:
            if name != sent.name:
                renamed[sent.name] = name
            if _type_of(earlier) != _type_of(column):
                is_retyped = is_retyped or not has_same_files
                why += _printed_otherwise(earlier, column) if has_same_files else []
    told = columns_after(after, verdict, added, renamed)
    if not renamed and not added and told == columns_after(before, verdict):
        return None if not is_retyped else Altered(told, "; ".join(why), is_retyped, tuple(revealed))
    return Altered(told, "; ".join(why), is_retyped, tuple(revealed))


def _printed_otherwise(before: Attribute, after: Attribute) -> list[str]:
    """A column has another type, and its values are the same bytes."""
    if are_alike(before.type_oid, after.type_oid) and before.type.form is after.type.form:
        return []
    return [f"column {after.name}: it was {before.type} and is {after.type}"]


def keeps_files(before: TableDefinition, now: TableDefinition) -> bool:
    """Whether what held its rows still holds them as it did: they were not written anew, or removed at once."""
    files = dict(now.storage)
    return all(files.get(oid) == file for oid, file in before.storage)


def rewritten(
    before: TableDefinition,
    now: TableDefinition,
    *,
    is_retyped: bool,
    born: Collection[int] = frozenset(),
    may_be_unlogged: bool = False,
) -> str:
    """Why rows that both have may be others, though no message says so; '' where they are not.

    `is_retyped`: columns have changed since the files of `before` were looked at. Else new files of a table are those
    of VACUUM FULL, CLUSTER or another tablespace, unless a column was written into the catalog anew as well: that is
    what ALTER COLUMN ... TYPE with USING leaves where the type stays the same. `born`: partitions that were made as
    such, without rows. `may_be_unlogged`: the server lets its owner set the table UNLOGGED.
    """
    found = restated(before, now)
    if found:
        return found
    files, files_now = dict(before.storage), dict(now.storage)
    if before.kind == _PARTITIONED:
        if files.keys() - files_now.keys():
            return "a partition was detached or dropped, or was replaced"
        if files_now.keys() - files.keys() - set(born):
            return "a partition was attached"
        if any(files[oid] not in (EMPTIED, files_now[oid]) for oid in files):
            return "a partition was emptied or written anew"
    if keeps_files(before, now):
        return ""
    if is_retyped:
        return "the table was written anew with another column's type or values"
    if before.kind != _PARTITIONED and _are_rewritten(before, now):
        return "the table was written anew, and a column altered: USING may have given it other values"
    was_emptied = EMPTIED in files.values()  # by a TRUNCATE that the log has: its file comes with the next look
    if may_be_unlogged and before.kind != _PARTITIONED and not (was_emptied or _keeps_toast(before, now)):
        return "the table was written anew, and may have been UNLOGGED meanwhile"
    return ""


def _keeps_toast(before: TableDefinition, now: TableDefinition) -> bool:
    """Whether it has one and the same TOAST table. VACUUM FULL and CLUSTER keep it, and ALTER TABLE does not where it
    writes rows anew, so SET LOGGED; a table without one is not known to have been written anew by either."""
    return bool(before.toast) and before.toast == now.toast


def _are_rewritten(before: TableDefinition, now: TableDefinition) -> bool:
    """Whether columns that both have were altered. Of a definition that was stored without this it is not known."""
    if not before.written_by:
        return bool(before.sent)
    writers = dict(before.written_by)
    return any(writers.get(number, by) != by for number, by in now.written_by)


def emptied(definition: TableDefinition) -> TableDefinition:
    """After TRUNCATE it has other files."""
    return replace(definition, file_node=EMPTIED, storage=tuple((oid, EMPTIED) for oid, _ in definition.storage))


def replaced_columns(before: TableDefinition, now: TableDefinition) -> str:
    """Of a look: columns that were dropped and added again under their names. Rows of between are not told apart."""
    was = {one.name: one.number for one in before.sent}
    names = [one.name for one in now.sent if was.get(one.name, one.number) != one.number]
    numbers = {one.number for one in before.sent}
    added = [name for name in names if _numbered(now, name) not in numbers]
    return f"columns were dropped and added again: {', '.join(added)}" if added else ""


def _numbered(definition: TableDefinition, name: str) -> int:
    return next(one.number for one in definition.sent if one.name == name)
