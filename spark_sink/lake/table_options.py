"""What a table's current state has beyond its source's rows and columns, by rules for tables' names.

Comes in: `menura sink run --table-options`, and a table's pending work. Goes out: columns of the sink's own and Delta's
properties. The table itself is what remembers them: by its columns, and by Delta's property for the change feed. A
table that has other columns than its rule asks for takes no row: it stops, or begins anew with a dump, never both kinds
of rows in one.

* `soft_delete`: a row that its source deletes stays, with its last values and `_menura_is_deleted`; one key has one
  row, so an insert of that key puts it again. For everything here that looks for living rows it is not there.
* `commit_time`: `_menura_committed_at` says when the row's last change committed.
* `change_feed`: `delta.enableChangeDataFeed`, on or off at any time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import pyarrow as pa
from deltalake import DeltaTable
from menura.change_batch import COMMIT_TIMESTAMP_US, GSN

from spark_sink.errors import TableOptionImpossible, TableOptionsChanged
from spark_sink.lake.delta_table import CHANGE_FEED, has_change_feed, quoted, schema_of
from spark_sink.lake.net_effect import COMMITTED_AT, DELETED, IS_DELETED
from spark_sink.work import TableId, last_rule

#: by the columns' names
_TYPES = {IS_DELETED: pa.bool_(), COMMITTED_AT: pa.timestamp("us", "UTC")}
NO_OPTION = "none"


@dataclass(frozen=True, slots=True)
class TableOptions:
    soft_delete: bool = False
    commit_time: bool = False
    change_feed: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Those of the current state."""
        wanted = ((self.soft_delete, IS_DELETED), (self.commit_time, COMMITTED_AT))
        return tuple(name for is_wanted, name in wanted if is_wanted)

    @property
    def properties(self) -> dict[str, str]:
        """Delta's."""
        return {CHANGE_FEED: "true"} if self.change_feed else {}

    @property
    def words(self) -> str:
        """As the argument has them.

        >>> TableOptions(soft_delete=True, change_feed=True).words, TableOptions().words
        ('soft_delete,change_feed', 'none')
        """
        return ",".join(option.name for option in fields(self) if getattr(self, option.name)) or NO_OPTION

    def schema(self, source: pa.Schema) -> pa.Schema:
        """A current state's columns with these options'."""
        plain = [found for found in source if found.name not in _TYPES]
        return pa.schema([*plain, *(pa.field(name, _TYPES[name]) for name in self.columns)])


NO_OPTIONS = TableOptions()
OPTIONS = tuple(option.name for option in fields(TableOptions))


@dataclass(frozen=True, slots=True)
class OptionRules:
    """Which options tables have: the last rule that a table's name fits counts, whole; without one it has none.

    >>> rules = OptionRules.parse(["commit_time", "acme/shop/shop.audit*=soft_delete,commit_time"])
    >>> rules.of(TableId("acme", "shop", "shop", "orders")).words
    'commit_time'
    >>> rules.of(TableId("acme", "shop", "shop", "audit_2026")).words
    'soft_delete,commit_time'
    """

    rules: tuple[tuple[str, TableOptions], ...] = ()

    @classmethod
    def parse(cls, words: Sequence[str]) -> "OptionRules":
        """From `[TENANT/SOURCE/DATABASE.TABLE=]OPTION[,OPTION...]`, or `none`. Raises ValueError."""
        return cls(tuple(map(_rule, words)))

    def of(self, table: TableId) -> TableOptions:
        return last_rule(self.rules, table, NO_OPTIONS)


PLAIN_TABLES = OptionRules()


def _rule(word: str) -> tuple[str, TableOptions]:
    pattern, _, said = word.rpartition("=")
    names = said.split(",") if said != NO_OPTION else []
    for name in names:
        if name not in OPTIONS:
            raise ValueError(f"{word!r} has {name!r}, which is none of {', '.join((*OPTIONS, NO_OPTION))}")
    return pattern or "*", TableOptions(**dict.fromkeys(names, True))


def options_of(current: DeltaTable) -> TableOptions:
    """Those that a table has."""
    names = schema_of(current).names
    return TableOptions(IS_DELETED in names, COMMITTED_AT in names, has_change_feed(current))


def set_change_feed(current: DeltaTable, options: TableOptions) -> None:
    """In a commit of its own, unless it is so already."""
    if has_change_feed(current) != options.change_feed:
        value = "true" if options.change_feed else "false"
        current.alter.set_table_properties({CHANGE_FEED: value}, raise_if_not_exists=False)


def check_options(table: TableId, options: TableOptions, current: DeltaTable, cut: int, *, begins_anew: bool) -> None:
    """Before anything is written. `begins_anew`: the table is emptied first. Raises `TableOptionsChanged`."""
    held = options_of(current)
    if held.columns == options.columns or begins_anew:
        return
    raise TableOptionsChanged(
        "writing the table in the lake",
        f"its options are {options.words}, and its rows were written with {held.words}",
        data="The table stays at its last version; other tables go on",
        remedy="Start the sink with --table-options as they were; or have the table begin anew with these, which leaves"
        f" out its deleted rows: {table.resync}",
        **table.where(cut),
    )


def without_key(table: TableId, cut: int) -> TableOptionImpossible:
    """Of a table that shall keep deleted rows."""
    name = f"{table.tenant}/{table.source}/{table.database}.{table.table}"
    return TableOptionImpossible(
        "writing the table in the lake",
        "its option soft_delete keeps deleted rows by their primary key, and the table has none",
        data="The table stays at its last version; other tables go on",
        remedy=f"Start the sink with --table-options that leave it out, e.g. '{name}=none'; then run: {table.retry}",
        **table.where(cut),
    )


def with_option_columns(fitted: pa.Table, rows: pa.Table) -> pa.Table:
    """Rows in the current state's columns, with `_menura_deleted`, and their options' columns filled.

    `rows`: the same as landed or logged.
    """
    names = fitted.column_names
    if IS_DELETED in names:
        fitted = fitted.set_column(names.index(IS_DELETED), IS_DELETED, fitted[DELETED])
    if COMMITTED_AT in names:
        committed = rows[COMMIT_TIMESTAMP_US].cast(_TYPES[COMMITTED_AT])
        fitted = fitted.set_column(names.index(COMMITTED_AT), COMMITTED_AT, committed)
    return fitted


def deletion_marks(held: pa.Schema, gsn: int, committed_us: int) -> dict[str, str] | None:
    """What rows get that a change with this number takes away; None where they go. Those that have it keep theirs."""
    if IS_DELETED not in held.names:
        return None
    values = {quoted(IS_DELETED): "TRUE", quoted(GSN): str(gsn)}
    if COMMITTED_AT in held.names:
        values[quoted(COMMITTED_AT)] = f"arrow_cast({committed_us}, 'Timestamp(Microsecond, Some(\"UTC\"))')"
    return values


def kept(effect: pa.Table) -> pa.Table:
    """What rows do to a current state, where none is taken away: those that were deleted stay, marked."""
    if IS_DELETED not in effect.column_names:
        return effect
    place = effect.column_names.index(DELETED)
    return effect.set_column(place, DELETED, pa.repeat(pa.scalar(value=False), effect.num_rows))
