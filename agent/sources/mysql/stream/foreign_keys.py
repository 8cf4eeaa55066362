"""Foreign keys whose actions the server does not log: which of them the lake carries out, and which stop their table.

Comes in: a child's table map, which stands before the rows of each statement that may act on it; on MySQL, which has
none there, those of its parents. Goes out: an event FOREIGN_KEYS of the child wherever the keys that can be followed
are others than before, in order with the rows; and, of keys that can't, what the decoder has to take for rows that are
missing. A statement with foreign_key_checks=0 changes rows of a parent and no row of a child: the cut says which rows
those are. Nothing is durable here; a new stream tells the keys anew at the first table map.

A key is followed where its parent gets the rows of the same transaction, nothing of it is held back by the filter, both
sides compare as the lake can, and the child has a primary key. In a ring of several tables no key is. Where a generated
column reads the key's columns, what the key changes in rows that stay is not followed: only the server can compute it.
What the key takes away is followed all the same, as a key of its own. What a followed
key does through a table whose rows a dump is still to bring is told as not followed too, so that the child is read
again after it. So it is where the lake lacks rows that such a table had before its sync began; then that table is read
again too, and lacks nothing from there on.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Protocol

from menura.v1 import changes_pb2

from agent.capture.cuts import Cuts
from agent.filter import Filter
from agent.sources.mysql.ddl.derived import computed_from, unsent
from agent.sources.mysql.ddl.statements import StatementSummary
from agent.sources.mysql.native.decoder import FollowedTable, TablePlan
from agent.sources.mysql.server.foreign_keys import Action, Cascades, Follows, ForeignKey, Keys
from agent.sources.mysql.stream.context import StreamContext
from agent.sources.mysql.stream.key_columns import are_alike, comparison_message
from agent.table_positions import Table, name_message
from agent.unlogged import UnloggedChanges

_Key = changes_pb2.ForeignKey
_ACTIONS = {Action.NONE: _Key.NONE, Action.CASCADE: _Key.CASCADE, Action.SET_NULL: _Key.SET_NULL}
_AHEAD = "the table has these rows"
_KEY_WORDS = frozenset({"FOREIGN", "REFERENCES", "CONSTRAINT"})


class UnloggedRows(Protocol):
    def changed(self, tables: Collection[Table], why: str, transaction: str) -> None:
        """Rows of these tables changed, and the log does not hold them."""


class FollowedKeys:
    """Of one stream."""

    def __init__(self, context: StreamContext, cascades: Cascades, cuts: Cuts) -> None:
        self._filter = context.config.filter
        self._policy = context.config.unlogged
        self._most_rereads_per_hour = context.config.dump.max_rereads_per_hour
        self._cascades = cascades
        self._decoder = context.decoder
        self._table_positions = context.table_positions
        self._stale = context.stale
        self._cuts = cuts
        #: what was told of each child in this stream
        self._told: dict[Table, tuple[ForeignKey, ...]] = {}
        #: of each child that has keys that act: those that are not followed, and why
        self._left: dict[Table, dict[ForeignKey, str]] = {}
        #: tables that others follow without being announced beside them
        self._followed: dict[Table, FollowedTable] = {}
        #: of the tables with keys, those that the decoder may have
        self._plans: dict[Table, list[TablePlan]] = {}
        self._parents: set[Table] = set()
        #: tables whose keys a statement may have changed since they were told
        self._changed: set[Table] = set()

    def announced(self, table: Table, plan: TablePlan, gets_rows: Callable[[Table], bool], position: str) -> None:
        """A statement has the table open. Raises a `SourceError`."""
        left = self._judge(table, gets_rows, position)
        found = self._cascades.of(table)
        self._expect(table, plan, found, left)
        acts = not found.are_logged and any(key.acts for key in found.keys)
        if acts and not any(plan is other for other in self._plans.setdefault(table, [])):
            self._plans[table].append(plan)

    def parent_announced(self, table: Table, gets_rows: Callable[[Table], bool], position: str) -> FollowedTable | None:
        """A statement has a table open, and does not announce those that follow it; None: there are none.

        Raises a `SourceError`.
        """
        below = [
            each.table
            for each in self._cascades.unannounced_below(table)
            if self._table_positions.is_synced(each.table)
        ]
        for child in below:
            if gets_rows(child):
                self._judge(child, gets_rows, position)
        if not below:
            return None
        followed = self._followed.setdefault(table, FollowedTable())
        self._note_stopping(table, followed, gets_rows)
        return followed

    def stopping_below(self, parent: Table, gets_rows: Callable[[Table], bool]) -> list[tuple[Table, str]]:
        """The tables that stop, by their policy, where rows of this one that is announced alone are changed; why."""
        return [(table, self._why_acted(table)) for table, _, _ in self._stopping(parent, gets_rows)]

    def _stopping(self, parent: Table, gets_rows: Callable[[Table], bool]) -> list[Follows]:
        return [
            each
            for each in self._not_followed_below(parent)
            if not self._tells(each.table) and gets_rows(each.table) and not self._stale.waits(each.table)
        ]

    def _note_stopping(self, parent: Table, followed: FollowedTable, gets_rows: Callable[[Table], bool]) -> None:
        stopping = self._stopping(parent, gets_rows)
        followed.stop_at(any(each.on_delete for each in stopping), any(each.on_update for each in stopping))

    def _judge(self, table: Table, gets_rows: Callable[[Table], bool], position: str) -> list[ForeignKey]:
        """Tell the keys that are followed, where they are others than before; the others."""
        found = self._cascades.of(table)
        acting = [] if found.are_logged else [part for key in found.keys for part in self._parts(table, key)]
        reasons = {key: self._why_not(table, key, gets_rows) if gets_rows(table) else _AHEAD for key in acting}
        followed = tuple(key for key in acting if not reasons[key])
        if not self._stale.waits(table):  # else a dump is to bring what the keys do until it begins
            reasons |= {key: why for key in followed if (why := self._why_uncertain(key))}
        left = {key: reasons[key] for key in acting if reasons[key]}
        self._left[table] = left
        told = self._told.get(table)
        is_new = told is None and not found.are_logged and (acting or table in self._changed)
        if followed != (told or ()) or is_new:
            self._tell(table, followed, position)
        self._told[table] = followed
        self._changed.discard(table)
        return list(left)

    @property
    def are_there(self) -> bool:
        """Whether some table has such keys, so that who gets rows matters for others too."""
        return bool(self._followed) or any(self._plans.values())

    def changed_by(self, table: Table, summary: StatementSummary, position: str) -> bool:
        """A statement may have changed the table's keys: True where those of before it can't be told.

        Where it drops some, none is followed until the next table map tells those that are left.

        Keys are asked for as they are now. Where the statement changes some and the server shows the same keys as
        before it, they were asked for when it had run already, and rows before it followed the keys of after it.
        """
        before = self._cascades.known(table)
        self._cascades.definition_changed(table)
        self._plans.pop(table, None)
        names = {name.upper() for _, name in summary.names}
        if summary.first.startswith("CREATE") or not names & _KEY_WORDS:
            return False
        self._changed.add(table)
        now = self._cascades.of(table)
        if now.are_logged:
            return False
        if "DROP" in names and summary.mentions(*table):
            # What an earlier stream has told may hold no longer, and without keys nothing is told again.
            self._tell(table, (), position)
            self._told[table] = ()
        # Of a table that has no key and loses none it is another one's key that refers to it.
        return now == before and ("DROP" in names or bool(now.keys))

    def may_be_others(self, summary: StatementSummary) -> bool:
        """Whether a statement's keys may be those of tables that later statements do not announce."""
        return not self._cascades.are_announced and bool({name.upper() for _, name in summary.names} & _KEY_WORDS)

    def children_of(self, table: Table) -> Collection[Table]:
        return self._cascades.children_of(table)

    def end_cut(self, unlogged: UnloggedRows, position: str = "") -> None:
        """Tell what no key minds of the parents' rows, and which children may have changed otherwise."""
        for database, name, first_gsn, above_gsn in self._decoder.take_unchecked():
            if (database, name) in self._parents:
                event = changes_pb2.TableEvent(
                    table=name_message((database, name)),
                    kind=changes_pb2.TableEvent.FOREIGN_KEYS_UNCHECKED,
                    gsn=above_gsn,
                    unchecked_from_gsn=first_gsn,
                )
                self._cuts.add_event(event)
        for table, of_table in self._plans.items():
            if sum(plan.take_missing() for plan in of_table):
                self._may_have_changed(table, unlogged, position)
        for parent, followed in self._followed.items():
            deleted, updated = followed.take_changes()
            if deleted or updated:
                for table, on_delete, on_update in self._not_followed_below(parent):
                    if (deleted and on_delete) or (updated and on_update):
                        self._may_have_changed(table, unlogged, position)

    def _not_followed_below(self, parent: Table) -> list[Follows]:
        """The tables that keys which are not followed may change with this parent, and by which of its changes."""
        below = self._cascades.unannounced_below(parent)
        deeper = {_lowered(each.table) for each in below}
        found = []
        for each in below:
            left = self._left.get(each.table, {}) if self._table_positions.is_synced(each.table) else {}
            keys = [key for key, why in left.items() if why != _AHEAD]
            own = [key for key in keys if _lowered(key.parent) == _lowered(parent)]
            is_deeper = any(_lowered(key.parent) in deeper for key in keys)
            on_delete = each.on_delete and (is_deeper or any(key.on_delete for key in own))
            on_update = each.on_update and (is_deeper or any(key.on_update for key in own))
            if on_delete or on_update:
                found.append(Follows(each.table, on_delete, on_update))
        return found

    def _may_have_changed(self, table: Table, unlogged: UnloggedRows, position: str) -> None:
        """By a key that is not followed. Where a dump is to come anyway one cause is as good as many."""
        if self._stale.waits(table):
            return
        lacking = [above for above in self._followers_above(table) if self._brings_rows(above)]
        unlogged.changed(lacking, f"{'.'.join(table)} follows rows of it that the lake lacks", position)
        if not self._stale.waits(table):  # it may be among them
            unlogged.changed([table], self._why_acted(table), position)

    def _why_acted(self, table: Table) -> str:
        why = "; ".join(
            f"{key_words(key, table, self._filter)}: {why}" for key, why in self._left.get(table, {}).items()
        )
        return f"a foreign key may have acted: {why}"

    def stopped(self, table: Table, gets_rows: Callable[[Table], bool]) -> bool:
        """Its rows come no more: whether some table followed it, whose next statements count as not followed."""
        for parent, followed in self._followed.items():
            self._note_stopping(parent, followed, gets_rows)
        children = [child for child in self._cascades.children_of(table) if self._acts_on(child)]
        for child in children:
            for plan in self._plans.get(child, ()):
                plan.follow(True, True, True, self._tells(child))
        return bool(children)

    # ---

    def _acts_on(self, table: Table) -> bool:
        """Whether keys of the table were told of, or that they are not followed."""
        return bool(self._told.get(table) or self._left.get(table))

    def _tell(self, table: Table, keys: Collection[ForeignKey], position: str) -> None:
        self._parents.update(key.parent for key in keys)
        columns = self._cascades.columns(table) if keys else {}
        event = changes_pb2.TableEvent(
            table=name_message(table),
            kind=changes_pb2.TableEvent.FOREIGN_KEYS,
            transaction_id=self._decoder.next_transaction_id,
            commit_timestamp_us=self._decoder.commit_timestamp_us,
            position=position,
            foreign_keys=[
                _Key(
                    name=key.name,
                    columns=key.columns,
                    parent=name_message(key.parent),
                    parent_columns=key.parent_columns,
                    on_delete=_ACTIONS[key.on_delete],
                    on_update=_ACTIONS[key.on_update],
                    comparisons=[comparison_message(columns[name.lower()]) for name in key.columns],
                )
                for key in keys
            ],
        )
        if self._policy.of(*table) is UnloggedChanges.REREAD:
            event.reread = True
            event.most_rereads_per_hour = self._most_rereads_per_hour
        event.gsn = self._decoder.take_gsn()
        self._cuts.add_event(event)

    def _expect(self, table: Table, plan: TablePlan, found: Keys, left: Collection[ForeignKey]) -> None:
        """What the decoder takes for rows that are missing, of keys that are not followed."""
        plan.follow(
            found.is_uncertain or any(key.on_delete or (key.on_update and self._moves(key.parent)) for key in left),
            found.is_uncertain or any(key.on_update for key in left),
            found.is_uncertain or any(key.on_delete and self._comes_back(table, key.parent) for key in left),
            not found.is_uncertain and self._tells(table),
        )

    def _tells(self, table: Table) -> bool:
        return self._policy.of(*table) is not UnloggedChanges.STOP

    def _comes_back(self, table: Table, parent: Table) -> bool:
        """Whether deleting a row of the table may in the end delete one of this parent."""
        seen: set[Table] = set()
        left = [parent]
        while left:
            child = left.pop()
            if child == table:
                return True
            if child not in seen:
                seen.add(child)
                found = self._cascades.of(child)
                if found.is_uncertain:
                    return True
                left += [key.parent for key in found.keys if key.on_delete]
        return False

    def _moves(self, table: Table) -> bool:
        """Whether rows of the table may get other values, and stay, where rows of tables above it are deleted."""
        seen: set[Table] = set()
        left = [table]
        while left:
            near = left.pop()
            if near not in seen:
                seen.add(near)
                found = self._cascades.of(near)
                if found.is_uncertain or any(key.on_delete not in (Action.NONE, Action.CASCADE) for key in found.keys):
                    return True
                left += [key.parent for key in found.keys if key.on_update]
        return False

    def _why_not(self, table: Table, key: ForeignKey, gets_rows: Callable[[Table], bool]) -> str:
        """Why the lake can't do what the key does; empty where it can."""
        if Action.SET_DEFAULT in (key.on_delete, key.on_update):
            return "SET DEFAULT is not followed"
        if not gets_rows(key.parent):
            is_hidden = self._filter.is_vetoed(key.parent)
            return f"{'a table' if is_hidden else '.'.join(key.parent)} is not synced here"
        if key.parent != table and self._is_in_ring(table, key.parent):
            return "the tables refer to each other in a ring"
        above = self._cascades.of(key.parent)
        if above.is_uncertain or above.is_versioned or self._cascades.of(table).is_versioned:
            return "a table has former versions of rows, or is held by a MERGE table"
        sides = ((table, key.columns), (key.parent, key.parent_columns))
        if any(unsent(self._filter, name, None).ignores(column) for name, columns in sides for column in columns):
            return "a column of it is not sent"
        child, parent = self._cascades.columns(table), self._cascades.columns(key.parent)
        verdict = self._filter.verdict(*table)
        primary = [name for name, column in child.items() if column.is_primary]
        if not primary or any(verdict.ignores(name) for name in primary):
            return "the table has no primary key here"
        if not all(
            are_alike(child.get(one.lower()), parent.get(other.lower()))
            for one, other in zip(key.columns, key.parent_columns, strict=True)
        ):
            return "its columns are of two types, or of a collation whose order is not known"
        if key.changes_values and self._is_computed_from(table, key):
            return "a column is computed from it"
        for upper in above.keys:
            for part in self._parts(key.parent, upper) if key.parent not in (table, upper.parent) else ():
                why = self._why_not(key.parent, part, gets_rows) if _reaches(part, key) else ""
                if why:
                    return f"{key_words(upper, key.parent, self._filter)} of {'.'.join(key.parent)}: {why}"
        return ""

    def _parts(self, table: Table, key: ForeignKey) -> list[ForeignKey]:
        """What the key does: what it takes away apart, where that alone may be followed; none where it does nothing."""
        if key.on_delete is Action.CASCADE and key.on_update and self._is_computed_from(table, key):
            return [replace(key, on_update=Action.NONE), replace(key, on_delete=Action.NONE)]
        return [key] if key.acts else []

    def _is_computed_from(self, table: Table, key: ForeignKey) -> bool:
        """Whether a column that is sent follows from the key's columns."""
        reads = {name: column.reads for name, column in self._cascades.columns(table).items()}
        verdict = unsent(self._filter, table, None)
        return not all(map(verdict.ignores, computed_from([name.lower() for name in key.columns], reads)))

    def _why_uncertain(self, key: ForeignKey) -> str:
        """Why what a followed key does can't be told now; empty where it can.

        A table's rows follow those of its parent. Those that the parent's own keys change are known where the lake has
        them: of a row that it lacks, or that a dump is still to bring, what became is not.
        """
        for above in self._followers_from(key.parent):
            if self._stale.lacks_rows(above):
                return f"the lake lacks rows that {'.'.join(above)} had before its sync began"
            if above in self._stale:
                return f"{'.'.join(above)} has rows that a dump is to bring"
        return ""

    def _brings_rows(self, table: Table) -> bool:
        """Whether a dump shall bring what the lake lacks of the table."""
        return self._stale.lacks_rows(table) and self._policy.of(*table) is UnloggedChanges.REREAD

    def _followers_above(self, table: Table) -> list[Table]:
        """The tables that this one follows, however far, and that follow others themselves."""
        keys = [key for key in self._cascades.of(table).keys if key.acts]
        return list(dict.fromkeys(above for key in keys for above in self._followers_from(key.parent)))

    def _followers_from(self, table: Table) -> list[Table]:
        """This table and those that it follows, without the ones that follow none."""
        found: list[Table] = []
        seen: set[Table] = set()
        left = [table]
        while left:
            above = left.pop()
            if above not in seen:
                seen.add(above)
                upper = [each.parent for each in self._cascades.of(above).keys if each.acts]
                found += [above] if upper else []
                left += upper
        return found

    def _is_in_ring(self, table: Table, parent: Table) -> bool:
        """Whether the parent follows the table by keys that act, however far."""
        seen: set[Table] = set()
        left = [parent]
        while left:
            at = left.pop()
            if at == table:
                return True
            if at not in seen:
                seen.add(at)
                left += [key.parent for key in self._cascades.of(at).keys if key.acts and key.parent != at]
        return False


def _reaches(upper: ForeignKey, key: ForeignKey) -> bool:
    """Whether what the key of a parent does can concern a key to it: not by values of other columns alone.

    >>> rows = ForeignKey("c", ("up",), ("shop", "a"), ("id",), on_update=Action.CASCADE)
    >>> [_reaches(rows, ForeignKey("d", ("x",), ("shop", "b"), (parent,))) for parent in ("id", "Up")]
    [False, True]
    """
    columns = {name.lower() for name in upper.columns}
    return upper.on_delete is Action.CASCADE or not columns.isdisjoint(name.lower() for name in key.parent_columns)


def _lowered(table: Table) -> Table:
    return table[0].lower(), table[1].lower()


def key_words(key: ForeignKey, table: Table, filter_: Filter) -> str:
    """Nothing of one that is to a table, or has a column, that the host's policy keeps back."""
    sides = ((table, key.columns), (key.parent, key.parent_columns))
    kept_back = ((filter_.column_veto(name), columns) for name, columns in sides)
    if any(veto is None or any(map(veto.ignores, columns)) for veto, columns in kept_back):
        return "a foreign key"
    return f"{key.name} ({', '.join(key.columns)}) REFERENCES {'.'.join(key.parent)}"
