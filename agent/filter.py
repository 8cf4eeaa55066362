"""The filter policy: which tables and columns may leave this host.

Comes in: `filter_policy` and `filter` of a source's configuration. Goes out: a verdict per table, asked
before a table's rows are planned, so that an ignored column's bytes are stepped over by the decoder and
never reach a buffer. The control plane can narrow what the verdict allows, never widen it.

==========  ==========================  =================================  =====================
policy      table not in the filter     listed, empty                      with `ignored_columns`
==========  ==========================  =================================  =====================
accept      synced                      dropped                            synced without them
drop        dropped                     synced                             synced without them
==========  ==========================  =================================  =====================

A key is ``table`` (in any database) or ``database.table``, which wins over the former.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from agent.errors import FilterColumnIsKey, FilterColumnUnknown, FilterTableUnknown

SYSTEM_DATABASES = frozenset({"mysql", "information_schema", "performance_schema", "sys"})


class Policy(StrEnum):
    ACCEPT = "accept"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Verdict:
    #: False: no row of the table leaves this host
    allowed: bool
    #: lower-cased names: column names have no case on these servers
    ignored_columns: frozenset[str] = frozenset()

    def ignores(self, column: str) -> bool:
        return column.lower() in self.ignored_columns


class KnownTable:
    """What the filter is checked against."""

    __slots__ = ("columns", "database", "key_columns", "table")

    def __init__(self, database: str, table: str, columns: Iterable[str], key_columns: Iterable[str]) -> None:
        self.database = database
        self.table = table
        self.columns = frozenset(name.lower() for name in columns)
        self.key_columns = frozenset(name.lower() for name in key_columns)


@dataclass(frozen=True, slots=True)
class Filter:
    policy: Policy = Policy.ACCEPT
    #: key as written -> its ignored columns; None: listed empty
    rules: Mapping[str, tuple[str, ...] | None] | None = None

    def verdict(self, database: str, table: str) -> Verdict:
        """Whether the table may be synced and without which columns.

        >>> accept = Filter(Policy.ACCEPT, {"orders": None, "customers": ("Email",)})
        >>> accept.verdict("shop", "orders").allowed, accept.verdict("shop", "items").allowed
        (False, True)
        >>> accept.verdict("shop", "customers").ignores("email")
        True
        """
        if database.lower() in SYSTEM_DATABASES:
            return Verdict(allowed=False)
        rules = self.rules or {}
        key = f"{database}.{table}"
        if key not in rules:
            key = table
        if key not in rules:
            return Verdict(allowed=self.policy is Policy.ACCEPT)
        ignored = rules[key]
        if ignored is None:
            return Verdict(allowed=self.policy is Policy.DROP)
        return Verdict(allowed=True, ignored_columns=frozenset(name.lower() for name in ignored))

    def check(self, tables: Iterable[KnownTable], source: str) -> None:
        """Raise for a key that no table answers to, an ignored column that a table lacks, or one in its primary key."""
        rules = dict(self.rules or {})
        answering: set[str] = set()
        by_key: dict[str, list[KnownTable]] = {}
        for known in tables:
            keys = [key for key in (f"{known.database}.{known.table}", known.table) if key in rules]
            answering.update(keys)
            if keys:  # the first one wins
                by_key.setdefault(keys[0], []).append(known)
        for key, ignored in rules.items():
            doing = "checking the filter"
            if key not in answering:
                raise FilterTableUnknown(
                    doing,
                    f"sources.{source}.filter names the table {key!r}, which the server does not show to this user",
                    data="Nothing of this source was read",
                    remedy=f"Correct or remove sources.{source}.filter.{key}, or grant SELECT on that table",
                    source=source,
                )
            for known in by_key.get(key, ()):
                for column in ignored or ():
                    _check_column(known, column, key, source)

    def sha256(self) -> str:
        """Digest of the policy, so that a change of it is seen."""
        facts = [self.policy.value, {key: self.rules[key] for key in sorted(self.rules)} if self.rules else {}]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _check_column(known: KnownTable, column: str, key: str, source: str) -> None:
    where = f"sources.{source}.filter.{key}.ignored_columns"
    if column.lower() not in known.columns:
        raise FilterColumnUnknown(
            "checking the filter",
            f"{where} names {column!r}, which is no column of {known.database}.{known.table}",
            data="Nothing of this source was read",
            remedy=f"Correct or remove it in {where}",
            source=source,
            database=known.database,
            table=known.table,
        )
    if column.lower() in known.key_columns:
        raise FilterColumnIsKey(
            "checking the filter",
            f"{where} names {column!r}, which is in the primary key: without it no change finds its row",
            data="Nothing of this source was read",
            remedy=f"Remove it from {where}, or drop the whole table in the filter",
            source=source,
            database=known.database,
            table=known.table,
        )
