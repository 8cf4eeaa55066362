"""The filter policy: which tables and columns may leave this host.

Comes in: `filter_policy` and `filter` of a source's configuration. Goes out: a verdict per table, asked
before a table's rows are planned, so that an ignored column's bytes are stepped over by the decoder and
never reach a buffer. The control plane can narrow what the verdict allows, never widen it. What the policy of the host
says (`agent.veto`) is in each verdict: a table leaves where both let it, a column too.

==========  ==========================  =================================  =====================
policy      table not in the filter     listed, empty                      with `ignored_columns`
==========  ==========================  =================================  =====================
accept      synced                      dropped                            synced without them
drop        dropped                     synced                             synced without them
==========  ==========================  =================================  =====================

A key is ``table`` (in any database) or ``database.table``, which wins over the former. A table that was renamed is
judged by its former name too, unless `renamed_from` of its rule names that; under `accept`, a copy that an online
schema change works on is judged as the table that it is of. A rule that does not fit the server's tables is a finding:
a missing table is only told, a column that is missing or in the key denies its table.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from menura.naming import sync_resync

from agent.errors import FilterColumnIsKey, FilterColumnUnknown, FilterTableUnknown, TableDenied, TableError
from agent.veto.local_policy import NO_VETO, SourceVeto
from agent.veto.policy import ALL_COLUMNS, ColumnVeto

#: (database, table)
Table = tuple[str, str]

_DOING = "checking the filter"
_UNREAD = "No row of it leaves the database's host, and the source's other tables are not concerned"


class Policy(StrEnum):
    ACCEPT = "accept"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Identifiers:
    """How a kind of source names things. By default the names of columns have no case: that keeps back more."""

    #: the servers' own, of which no row is sent; in their folded form
    system_databases: frozenset[str] = frozenset()
    #: the form in which two names of one column, or of one system database, are equal
    fold: Callable[[str], str] = str.lower
    #: tables that a table of this name may be a copy of, on which an online schema change works
    copied_tables: Callable[[str], Iterable[str]] = lambda name: ()


WITHOUT_CASE = Identifiers()


@dataclass(frozen=True, slots=True)
class Verdict:
    #: False: no row of the table leaves this host
    allowed: bool
    #: folded names
    ignored_columns: frozenset[str] = frozenset()
    identifiers: Identifiers = field(default=WITHOUT_CASE, compare=False, repr=False)
    #: what the host's policy keeps back beside them
    vetoed: ColumnVeto = ALL_COLUMNS

    def ignores(self, column: str) -> bool:
        return self.identifiers.fold(column) in self.ignored_columns or self.vetoed.ignores(column)

    @property
    def keeps_columns(self) -> bool:
        """Whether there may be a column that it ignores."""
        return bool(self.ignored_columns) or bool(self.vetoed)


class KnownTable:
    """What the filter is checked against.

    `kept_back`: ignored columns and those that are computed from them; `dropped`: columns that the stream saw go.
    """

    __slots__ = ("columns", "database", "dropped", "kept_back", "key_columns", "table")

    def __init__(
        self,
        database: str,
        table: str,
        columns: Iterable[str],
        key_columns: Iterable[str],
        kept_back: Iterable[str] = (),
    ) -> None:
        self.database = database
        self.table = table
        self.columns = frozenset(columns)
        self.key_columns = frozenset(key_columns)
        self.kept_back = frozenset(kept_back)
        self.dropped: frozenset[str] = frozenset()


class Origins:
    """Under which name each renamed table was before; written by the stream, read from any thread."""

    __slots__ = ("_maps",)

    def __init__(self) -> None:
        self._maps: tuple[Mapping[Table, Table], ...] = ()

    def are(self, *maps: Mapping[Table, Table]) -> None:
        self._maps = tuple(dict(one) for one in maps)

    def of(self, table: Table) -> list[Table]:
        return [origins[table] for origins in self._maps if table in origins]


class Findings:
    """What a look at the server's tables has found wrong; from any thread."""

    __slots__ = ("denied", "dropped", "unlogged")

    def __init__(self) -> None:
        self.denied: Mapping[Table, TableError] = {}
        #: ignored columns that the stream saw go, folded: nobody has misspelt them
        self.dropped: Mapping[Table, frozenset[str]] = {}
        #: generated columns whose new values the server leaves out of its log, folded
        self.unlogged: Mapping[Table, frozenset[str]] = {}


@dataclass(frozen=True, slots=True)
class Filter:
    policy: Policy = Policy.ACCEPT
    #: key as written -> its ignored columns; None: listed empty
    rules: Mapping[str, tuple[str, ...] | None] | None = None
    #: key as written -> names under which the filter lets its table come from
    renamed_from: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    identifiers: Identifiers = field(default=WITHOUT_CASE, compare=False, repr=False)
    origins: Origins = field(default_factory=Origins, compare=False, repr=False)
    findings: Findings = field(default_factory=Findings, compare=False, repr=False)
    veto: SourceVeto = field(default=NO_VETO, compare=False, repr=False)

    @property
    def keeps_back(self) -> bool:
        """Whether there is anything that a rename could bring out."""
        return bool(self.rules) or self.policy is Policy.DROP or self.veto.keeps_back

    def verdict(self, database: str, table: str) -> Verdict:
        """Whether the table may be synced and without which columns.

        >>> accept = Filter(Policy.ACCEPT, {"orders": None, "customers": ("Email",)})
        >>> accept.verdict("shop", "orders").allowed, accept.verdict("shop", "items").allowed
        (False, True)
        >>> accept.verdict("shop", "customers").ignores("email")
        True
        """
        name = (database, table)
        verdict = self.by_name(*name)
        for origin in self.origins.of(name):
            if not self._lets_come(*name, origin):
                was = self._by_rules(*origin)
                ignored = verdict.ignored_columns | was.ignored_columns
                verdict = replace(verdict, allowed=verdict.allowed and was.allowed, ignored_columns=ignored)
            if not self.veto.lets_come(name, origin):
                verdict = self._with_veto(verdict, origin)
        return replace(verdict, allowed=False) if name in self.findings.denied else verdict

    def by_name(self, database: str, table: str) -> Verdict:
        """The same, by the rules and the host's policy alone."""
        return self._with_veto(self._by_rules(database, table), (database, table))

    def is_vetoed(self, table: Table) -> bool:
        """Whether the host's policy keeps the table back, by its name or a former one: no gateway may hear of it."""
        ruled_by = [table, *(origin for origin in self.origins.of(table) if not self.veto.lets_come(table, origin))]
        return not all(self.veto.ruling(*name).leaves for name in ruled_by)

    def column_veto(self, table: Table) -> ColumnVeto | None:
        """Which columns the host's policy keeps back, under all names of the table; None: the table itself."""
        return None if self.is_vetoed(table) else self.verdict(*table).vetoed

    def told_columns(self, table: Table) -> frozenset[str]:
        """Of the columns that do not leave those of which a gateway may hear."""
        if self.is_vetoed(table):
            return frozenset()
        verdict = self.verdict(*table)
        unlogged = self.findings.unlogged.get(table, frozenset())
        return frozenset(name for name in verdict.ignored_columns | unlogged if not verdict.vetoed.ignores(name))

    def _with_veto(self, verdict: Verdict, name: Table) -> Verdict:
        ruling = self.veto.ruling(*name)
        if ruling.leaves and not ruling.columns:
            return verdict
        allowed = verdict.allowed and ruling.leaves
        return replace(verdict, allowed=allowed, vetoed=verdict.vetoed & ruling.columns)

    def _by_rules(self, database: str, table: str) -> Verdict:
        if self.identifiers.fold(database) in self.identifiers.system_databases:
            return self._verdict(False)
        names = [table, *(self.identifiers.copied_tables(table) if self.policy is Policy.ACCEPT else ())]
        key = next((key for name in names if (key := self._key(database, name)) is not None), None)
        if key is None:
            return self._verdict(self.policy is Policy.ACCEPT)
        ignored = (self.rules or {})[key]
        if ignored is None:
            return self._verdict(self.policy is Policy.DROP)
        return self._verdict(True, map(self.identifiers.fold, ignored))

    def _verdict(self, allowed: bool, ignored_columns: Iterable[str] = ()) -> Verdict:
        return Verdict(allowed, frozenset(ignored_columns), self.identifiers)

    def denial(self, source: str, database: str, table: str) -> TableError:
        """Why the table is denied."""
        if self.is_vetoed((database, table)):
            return self.veto.denial((database, table))
        found = self.findings.denied.get((database, table))
        if found is not None:
            return type(found)(
                found.doing,
                found.found,
                data=found.data,
                remedy=found.remedy,
                source=source,
                database=database,
                table=table,
            )
        remedy = f"Allow it in sources.{source}.filter of the agent's configuration and restart it, or stop the sync"
        said = "this agent's own filter policy drops the table"
        for origin in self.origins.of((database, table)):
            if self._by_rules(database, table).allowed and not self._lets_come(database, table, origin):
                said = f"the table was renamed from {'.'.join(origin)}, which this agent's own filter policy drops"
                remedy = (
                    f"If its rows may leave the host, set sources.{source}.filter.{database}.{table}.renamed_from:"
                    f" [{'.'.join(origin)}] in the agent's configuration, restart the agent and run:"
                    f" {sync_resync(source, database, table)}"
                )
        return TableDenied(
            "starting a table's sync",
            said,
            data="No row of it leaves the database's host",
            remedy=remedy,
            source=source,
            database=database,
            table=table,
        )

    def named(self) -> frozenset[str]:
        """Names of tables, without their databases, that `check` has to see."""
        parts = (part for key in self.rules or {} for part in (key, key.partition(".")[2]) if part)
        return frozenset(parts) | self.veto.masked_tables()

    def check(self, tables: Iterable[KnownTable], source: str) -> list[FilterTableUnknown | TableError]:
        """What in the rules does not fit the server's tables; those that a finding names are denied from here on."""
        rules = dict(self.rules or {})
        answering: set[str] = set()
        denied: dict[Table, TableError] = {}
        for known in tables:
            if self.is_vetoed((known.database, known.table)):
                continue  # who reads the findings learns of no such table
            keys = [key for key in (f"{known.database}.{known.table}", known.table) if key in rules]
            answering.update(keys)
            known.dropped = self.findings.dropped.get((known.database, known.table), frozenset())
            ignored = rules[keys[0]] or () if keys else ()
            errors = self._wrong_columns(known, keys[0] if keys else "", ignored, source)
            if errors:
                denied[known.database, known.table] = errors[0]
        self.findings.denied = denied
        missing = [_table_unknown(key, source) for key in rules if key not in answering]
        return [*missing, *denied.values()]

    def _wrong_columns(self, known: KnownTable, key: str, ignored: Collection[str], source: str) -> list[TableError]:
        fold = self.identifiers.fold
        columns, key_columns, kept_back = (
            frozenset(map(fold, names)) for names in (known.columns, known.key_columns, [*known.kept_back, *ignored])
        )
        table = (known.database, known.table)
        vetoed = self.by_name(*table).vetoed
        unknown = [name for name in ignored if fold(name) not in columns | known.dropped and not vetoed.ignores(name)]
        found: list[TableError] = [_column_unknown(known, column, key, source) for column in unknown]
        there = {name.casefold() for name in (*known.columns, *known.dropped)}
        if not self.veto.masked_columns(table) <= there:
            found.append(self.veto.denial(table, "keeps back a column that is not there: it may have another name now"))
        for column in sorted(kept_back & key_columns):
            found.append(self.ignored_key(source, table, column, _DOING, _UNREAD))
        return found

    def ignored_key(self, source: str, table: Table, column: str, doing: str, data: str) -> TableError:
        """Why a table stays of whose key a column does; without its name, where the host's policy may be why."""
        if self.verdict(*table).vetoed:
            return self.veto.key_denial(table)
        return _ignored_key(source, table, column, doing, data)

    def sha256(self) -> str:
        """Digest of the policy, so that a change of it is seen."""
        facts: list[object] = [
            self.policy.value,
            {key: self.rules[key] for key in sorted(self.rules)} if self.rules else {},
        ]
        if self.renamed_from:
            facts.append({key: self.renamed_from[key] for key in sorted(self.renamed_from)})
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def _key(self, database: str, table: str) -> str | None:
        """Of the rule that counts for a name."""
        return next((key for key in (f"{database}.{table}", table) if key in (self.rules or {})), None)

    def _lets_come(self, database: str, table: str, origin: Table) -> bool:
        names = self.renamed_from.get(self._key(database, table) or "", ())
        return ".".join(origin) in names or (origin[0] == database and origin[1] in names)


def _table_unknown(key: str, source: str) -> FilterTableUnknown:
    return FilterTableUnknown(
        "checking the filter",
        f"sources.{source}.filter names the table {key!r}, which the server does not show to this user",
        data="The source's other tables are not concerned",
        remedy=f"Correct or remove sources.{source}.filter.{key}, and restart the agent; or grant SELECT on that table",
        source=source,
    )


def _column_unknown(known: KnownTable, column: str, key: str, source: str) -> FilterColumnUnknown:
    where = f"sources.{source}.filter.{key}.ignored_columns"
    return FilterColumnUnknown(
        _DOING,
        f"{where} names {column!r}, which is no column of {known.database}.{known.table}: it may be misspelt, or have"
        " another name now",
        data=_UNREAD,
        remedy=f"Correct or remove it in {where}, restart the agent and run:"
        f" {sync_resync(source, known.database, known.table)}",
        source=source,
        database=known.database,
        table=known.table,
    )


def _ignored_key(source: str, table: tuple[str, str], column: str, doing: str, data: str) -> FilterColumnIsKey:
    where = f"sources.{source}.filter.{'.'.join(table)}.ignored_columns"
    return FilterColumnIsKey(
        doing,
        f"{where} keeps back {column!r}, by its name or since it is computed from an ignored column; it is in the"
        " primary key, and without it no change finds its row",
        data=data,
        remedy=f"Let the column through in {where}, restart the agent and run: {sync_resync(source, *table)}; or drop"
        " the whole table in the filter",
        source=source,
        database=table[0],
        table=table[1],
    )
