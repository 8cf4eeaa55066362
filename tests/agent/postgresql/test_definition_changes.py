"""What a table's changes leave of its columns' values, beside a model that knows which column each value is of."""

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from agent.filter import Verdict
from agent.sources.postgresql.identifiers import IDENTIFIERS
from agent.sources.postgresql.server.definitions import Attribute, TableDefinition
from agent.sources.postgresql.server.missing_values import Missing, Unrepresentable
from agent.sources.postgresql.stream.column_numbers import may_have_been_others
from agent.sources.postgresql.stream.definition_changes import (
    Altered,
    altered,
    columns_after,
    emptied,
    is_told,
    keeps_files,
    replaced_columns,
    rewritten,
    told_by,
)
from agent.sources.postgresql.stream.relations import Relation, RelationColumn
from agent.sources.postgresql.types import builtin_type

ALL = Verdict(allowed=True)
INT, BIGINT, TEXT, VARCHAR, OID = 23, 20, 25, 1043, 26


def column(number: int, name: str, type_oid: int = INT, modifier: int = -1, **others: object) -> Attribute:
    found = builtin_type(type_oid, modifier)
    assert found is not None
    facts = {"not_null": False, "generated": False, "missing": None, "collation": ""} | others
    return Attribute(number, name, found, type_oid, modifier, **facts)  # type: ignore[arg-type]


def table(*columns: Attribute, file: int = 1, key: tuple[str, ...] = (), **others: object) -> TableDefinition:
    made = TableDefinition(7, "shop", "t", "r", file, "d", columns, key, key, storage=((7, file),))
    made = replace(made, last_number=max((one.number for one in columns), default=0))
    return replace(made, **others)  # type: ignore[arg-type]


def relation(definition: TableDefinition) -> Relation:
    columns = [
        RelationColumn(one.name, one.type_oid, one.modifier, one.name in definition.identity) for one in definition.sent
    ]
    return Relation(definition.oid, *definition.table, definition.replica_identity, tuple(columns))


# --- the model


@dataclass(frozen=True)
class State:
    definition: TableDefinition

    @property
    def next_number(self) -> int:
        return self.definition.last_number + 1

    def of(self, columns: list[Attribute], file: int = 0) -> "State":
        definition = self.definition
        if file:
            definition = replace(definition, file_node=file, storage=((7, file),))
        last = max([definition.last_number, *(one.number for one in columns)])
        return State(replace(definition, attributes=tuple(columns), last_number=last))


def step(state: State, kind: str, which: int, name: str) -> State:
    columns = list(state.definition.attributes)
    at = which % len(columns)
    names = {one.name for one in columns}
    match kind:
        case "add" if name not in names:
            return state.of([*columns, column(state.next_number, name)])
        case "drop" if len(columns) > 1:
            return state.of(columns[:at] + columns[at + 1 :])
        case "rename" if name not in names:
            columns[at] = replace(columns[at], name=name)
            return state.of(columns)
        case "again" if len(columns) > 1:
            gone = columns.pop(at)
            return state.of([*columns, column(state.next_number, gone.name, gone.type_oid)])
        case "retype":
            other = BIGINT if columns[at].type_oid == INT else INT
            columns[at] = column(columns[at].number, columns[at].name, other)
            return state.of(columns, state.definition.file_node + 1)
    return state


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "drop", "rename", "again", "retype"]),
        st.integers(0, 5),
        st.sampled_from("abcd"),
        st.booleans(),
        st.integers(0, 3),
    ),
    max_size=12,
)


@given(STEPS)
def test_columns_when_followed_through_any_changes_then_each_has_its_own_values_or_all_are_read_again(
    steps: list[tuple[str, int, str, bool, int]],
) -> None:
    """A row comes after some changes; the catalog is asked then, up to three changes later; at the end comes a look."""
    states = [State(table(column(1, "a"), column(2, "b")))]
    for kind, which, name, _, _ in steps:
        states.append(step(states[-1], kind, which, name))
    known = states[0].definition
    #: of each column of the lake the numbers of those whose values it has
    lake = {one.name: {one.number} for one in known.sent}
    is_retyped = is_unproven = False
    for at, (_, _, _, has_rows, later) in enumerate(steps, start=1):
        if not has_rows:
            continue
        shown = min(at + later, len(steps))
        now, then = states[shown].definition, states[at].definition
        told = told_by(relation(then), known, now, ALL)
        change = altered(known, told.definition, ALL, has_same_files=known.storage == now.storage)
        is_unproven = is_unproven or (told.is_now and may_have_been_others(known, told.definition))
        if change is not None:
            is_retyped = is_retyped or change.is_retyped
            lake = followed(lake, change)
        is_unproven = is_unproven or told.is_unfollowed
        known = told.definition
        assert [one.name for one in known.sent] == [one.name for one in then.sent]
        for one in then.sent:
            lake[one.name].add(one.number)
    last = states[-1].definition
    change = altered(known, last, ALL, has_same_files=known.storage == last.storage)
    is_retyped = is_retyped or (change is not None and change.is_retyped)
    reasons = [change.why if change is not None else "", replaced_columns(known, last)]
    reasons += [rewritten(known, last, is_retyped=is_retyped), "unproven" if is_unproven else ""]
    if any(reasons):
        return
    if change is not None:
        lake = followed(lake, change)
    assert lake.keys() == {one.name for one in last.sent}
    for one in last.sent:
        assert lake[one.name] <= {one.number, UNTOLD}
    assert all(one.type == other.type for one in known.sent for other in last.sent if one.number == other.number)


#: what an event says of a column's older rows
UNTOLD = 0


def followed(lake: dict[str, set[int]], change: Altered) -> dict[str, set[int]]:
    return {
        one.name: {UNTOLD} if one.WhichOneof("earlier_rows") else set(lake[one.renamed_from or one.name])
        for one in change.columns
    }


def told(before: TableDefinition, after: TableDefinition, **others: bool) -> list[tuple[str, str, str]]:
    change = altered(before, after, ALL, **others)
    assert change is not None
    return [(one.name, one.renamed_from, one.WhichOneof("earlier_rows") or "") for one in change.columns]


def test_column_when_added_then_what_older_rows_hold_is_told() -> None:
    before = table(column(1, "id"))
    values = [None, "5", Missing.UNKNOWN, Unrepresentable("infinity")]
    after = table(column(1, "id"), *(column(n, f"c{n}", missing=value) for n, value in enumerate(values, start=2)))
    earlier = [("id", "", ""), ("c2", "", "is_null"), ("c3", "", "text"), ("c4", "", "is_unknown")]
    assert told(before, after) == [*earlier, ("c5", "", "unrepresentable")]
    assert {kind for _, _, kind in told(before, after, has_same_files=False)} == {"", "is_unknown"}


def test_column_when_its_values_are_printed_otherwise_without_being_written_then_rows_are_read_again() -> None:
    assert altered(table(column(1, "a")), table(column(1, "a", OID)), ALL).why  # type: ignore[union-attr]
    wider = altered(table(column(1, "a", VARCHAR, 14)), table(column(1, "a", TEXT)), ALL)
    assert wider is not None
    assert not wider.why
    assert not wider.is_retyped
    numeric = [table(column(1, "a", 1700, ((digits << 16) | 2) + 4)) for digits in (10, 12)]
    more = altered(*numeric, ALL)
    assert more is not None
    assert (more.why, more.columns[0].arrow_format) == ("", "d:12,2")


def test_columns_when_nothing_that_is_sent_changes_then_nothing_is_told() -> None:
    before = table(column(1, "a"), column(2, "b", generated=True))
    assert altered(before, table(column(1, "a", not_null=True), column(2, "b", generated=True)), ALL) is None
    hides = Verdict(allowed=True, ignored_columns=frozenset({"hidden"}))
    assert altered(before, table(*before.attributes, column(3, "hidden")), hides) is None


def test_column_when_the_filter_ignored_it_then_another_name_reveals_it() -> None:
    hides = Verdict(allowed=True, ignored_columns=frozenset({"secret"}))
    before = table(column(1, "a"), column(2, "secret"))
    change = altered(before, table(column(1, "a"), column(2, "shown")), hides)
    assert change is not None
    assert change.revealed == ("shown",)
    computed = table(column(1, "a"), column(2, "of_secret", generated=True))
    change = altered(computed, table(column(1, "a"), column(2, "of_secret")), hides)
    assert change is not None
    assert change.revealed == ("of_secret",)


def test_rows_when_their_files_are_others_then_only_a_reason_has_them_read_again() -> None:
    before, after = (table(column(1, "a"), file=file, written_by=((1, 700),)) for file in (1, 2))
    assert not rewritten(before, after, is_retyped=False)
    altered_too = replace(after, written_by=((1, 701), (2, 701)))
    assert rewritten(before, altered_too, is_retyped=False)
    assert not rewritten(before, replace(altered_too, storage=before.storage), is_retyped=False)
    assert not rewritten(before, replace(after, written_by=((1, 700), (2, 701))), is_retyped=False)
    assert rewritten(replace(before, written_by=()), after, is_retyped=False)
    assert rewritten(before, after, is_retyped=True)
    assert not rewritten(emptied(before), after, is_retyped=False)
    parts = [replace(before, kind="p", storage=storage) for storage in (((8, 1), (9, 1)), ((8, 1),), ((8, 1), (9, 2)))]
    assert "detached or dropped" in rewritten(parts[0], parts[1], is_retyped=False)
    assert "attached" in rewritten(parts[1], parts[0], is_retyped=False)
    assert not rewritten(parts[1], parts[0], is_retyped=False, born={9})
    assert keeps_files(parts[1], parts[0])
    assert not keeps_files(parts[0], parts[1])
    assert "emptied or written anew" in rewritten(parts[0], parts[2], is_retyped=False)
    assert not rewritten(emptied(parts[0]), parts[2], is_retyped=False)
    first, renamed, back = (replace(before, labels=(one,)) for one in ((1, "x", 7), (1, "y", 8), (1, "x", 9)))
    assert "renamed" in rewritten(first, renamed, is_retyped=False)
    assert "meanwhile" in rewritten(first, back, is_retyped=False)


def test_column_when_dropped_and_added_between_two_looks_then_it_is_named() -> None:
    before = table(column(1, "a"), column(2, "b"))
    assert replaced_columns(before, table(column(1, "a"), column(3, "b"))).endswith(": b")
    assert not replaced_columns(before, table(column(1, "b"), column(2, "a")))


def test_key_when_it_is_another_one_then_it_is_told_with_its_places() -> None:
    before = table(column(1, "a"), column(2, "b"), key=("a",))
    after = table(column(1, "a"), column(2, "b"), key=("b", "a"))
    change = altered(before, after, ALL)
    assert change is not None
    assert [(one.name, one.key) for one in change.columns] == [("a", 2), ("b", 1)]
    full = replace(after, replica_identity="f")
    assert [one.key for one in columns_after(full, ALL)] == [2, 1]
    assert [one.key for one in columns_after(replace(after, replica_identity="n"), ALL)] == [0, 0]


def test_columns_when_case_alone_tells_them_apart_then_the_younger_one_has_a_number() -> None:
    before = table(column(1, "id"), column(2, "Id"))
    assert [one.name for one in columns_after(before, ALL)] == ["id", "Id#2"]
    assert told(before, table(column(2, "Id"), column(3, "n"))) == [("Id", "Id#2", ""), ("n", "", "is_null")]
    hides = Verdict(allowed=True, ignored_columns=frozenset({"id"}))
    assert [one.name for one in columns_after(before, replace(hides, identifiers=IDENTIFIERS))] == ["Id#2"]


# --- columns that messages need not have


SECRET = Verdict(True, frozenset({"secret"}), IDENTIFIERS)


def without(definition: TableDefinition, *names: str) -> Relation:
    """A message of a publication whose column list leaves these out."""
    told = relation(definition)
    return replace(told, columns=tuple(one for one in told.columns if one.name not in names))


def test_message_when_it_lacks_ignored_columns_or_has_generated_ones_then_the_table_is_as_it_was() -> None:
    known = table(column(1, "a"), column(2, "secret"), column(3, "sum", generated=True), column(4, "b"))
    generated = RelationColumn("sum", INT, -1, False)
    shown = relation(known)
    for columns in (
        shown.columns,
        without(known, "secret").columns,
        (*shown.columns[:2], generated, shown.columns[2]),
    ):
        assert is_told(replace(shown, columns=columns), known, SECRET)
    assert not is_told(without(known, "b"), known, SECRET)
    assert not is_told(without(known, "secret"), known, ALL)


def test_generated_column_when_it_is_an_ordinary_one_by_now_then_a_message_that_has_it_tells_so() -> None:
    before = table(column(1, "a"), column(2, "sum", generated=True))
    now = table(column(1, "a"), column(2, "sum"))
    assert told_by(relation(now), before, now, ALL).definition == now
    assert told_by(relation(before), before, now, ALL).definition == before


def test_message_when_a_list_lacks_a_column_that_is_new_then_the_table_is_as_it_was() -> None:
    before = table(column(1, "a"), column(2, "secret"))
    now = table(*before.attributes, column(3, "b"))
    found = told_by(without(now, "secret", "b"), before, now, SECRET)
    assert (found.definition, found.is_now) == (before, False)
    assert told_by(without(now, "secret"), before, now, SECRET).definition == now


def test_ignored_column_when_messages_lack_it_and_others_change_then_its_new_name_is_noticed() -> None:
    before = table(column(1, "a"), column(2, "secret"), column(3, "sum", generated=True))
    now = table(column(1, "a"), column(2, "open"), column(3, "sum", generated=True), column(5, "d", TEXT))
    made = told_by(without(table(column(1, "a"), column(4, "c")), "secret"), before, now, SECRET).definition
    assert [one.name for one in made.attributes] == ["a", "c", "secret", "sum"]
    change = altered(made, now, SECRET)
    assert change is not None
    assert change.revealed == ("open",)
    adopted = told_by(without(before, "secret"), None, table(*before.attributes, column(4, "e")), SECRET).definition
    assert [one.name for one in adopted.attributes] == ["a", "secret", "sum"]


def test_ignored_column_when_it_may_have_a_name_that_is_gone_by_now_then_that_is_told() -> None:
    before = table(column(1, "a"), column(2, "secret", TEXT))
    message = relation(table(column(1, "a"), column(2, "open", VARCHAR)))
    now = table(column(1, "a"), column(2, "later", VARCHAR))
    assert told_by(message, before, now, SECRET).revealed == ("open",)
    assert told_by(relation(now), before, now, SECRET).revealed == ()  # `altered` says it, by its number
    assert told_by(message, before, now, ALL).revealed == ()
