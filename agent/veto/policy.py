"""What a policy says of a table, pure: names in, a ruling with the line that decides out."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

#: in the place of a line: no line speaks of the table
DEFAULT_LINE = 0


class Request(StrEnum):
    """What a gateway may have of a source, and, as the last, whether it may configure sources."""

    CARTOGRAPHY = "cartography"
    CHANGES = "changes"
    DUMPS = "dumps"
    CONFIGURATION = "configuration"


@dataclass(frozen=True, slots=True)
class ColumnVeto:
    """Which columns of a table stay on the host."""

    #: folded names of those that may leave; None: all
    only: frozenset[str] | None = None
    #: case-folded names of those that stay
    ignored: frozenset[str] = frozenset()
    fold: Callable[[str], str] = field(default=str, compare=False, repr=False)

    def __bool__(self) -> bool:
        """Whether it may keep back anything."""
        return self.only is not None or bool(self.ignored)

    def __and__(self, other: "ColumnVeto") -> "ColumnVeto":
        """What leaves under both.

        >>> both = ColumnVeto(frozenset({"id", "name"})) & ColumnVeto(frozenset({"name", "pin"}), frozenset({"pin"}))
        >>> [name for name in ("id", "name", "pin", "new") if not both.ignores(name)]
        ['name']
        """
        if not other:
            return self
        lists = [only for only in (self.only, other.only) if only is not None]
        only = frozenset.intersection(*lists) if lists else None
        return ColumnVeto(only, self.ignored | other.ignored, other.fold)

    def ignores(self, column: str) -> bool:
        return column.casefold() in self.ignored or (self.only is not None and self.fold(column) not in self.only)


ALL_COLUMNS = ColumnVeto()


@dataclass(frozen=True, slots=True)
class Ruling:
    leaves: bool
    #: of the policy's file, the one that decides; DEFAULT_LINE: its default
    line: int = DEFAULT_LINE
    columns: ColumnVeto = ALL_COLUMNS


class Pattern:
    """A name, where `*` stands for any number of signs.

    >>> shop = Pattern("shop_*")
    >>> shop.is_exactly("shop_1"), shop.is_exactly("Shop_1"), shop.may_be("Shop_1"), shop.may_be("xshop_1")
    (True, False, True, False)
    """

    __slots__ = ("_any_case", "_as_written", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._as_written = _compiled(text)
        self._any_case = _compiled(text.casefold())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def is_exactly(self, name: str) -> bool:
        return self._as_written.fullmatch(name) is not None

    def may_be(self, name: str) -> bool:
        return self._any_case.fullmatch(name.casefold()) is not None


def _compiled(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry for tables."""

    line: int
    database: Pattern
    table: Pattern
    leaves: bool
    #: names as written of the columns that may leave; None: all
    only: tuple[str, ...] | None = None
    ignored_columns: tuple[str, ...] = ()
    #: none: all
    sources: tuple[str, ...] = ()
    #: former names, "DATABASE.TABLE", under which the table may have been kept back
    renamed_from: tuple[str, ...] = ()

    @property
    def is_of_one(self) -> bool:
        """Whether it names one table."""
        return "*" not in self.database.text + self.table.text


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose tables are asked about."""

    source: str = ""
    #: of the agent's own file, not configured by the control plane
    is_own: bool = True
    #: the form in which two names of one column are equal
    fold: Callable[[str], str] = str.lower
    #: tables that a table of this name may be a copy of
    copied_tables: Callable[[str], Iterable[str]] = lambda name: ()


@dataclass(frozen=True, slots=True)
class Policy:
    """One file; its defaults are those of a host that has none."""

    #: where it was read; empty: there is no file
    file: str = ""
    is_open: bool = True
    requests: frozenset[Request] = frozenset(Request)
    requests_line: int = DEFAULT_LINE
    #: sources that a gateway may have; None: all
    sources: tuple[str, ...] | None = None
    sources_line: int = DEFAULT_LINE
    rules: tuple[Rule, ...] = ()

    @property
    def keeps_back(self) -> bool:
        """Whether there is anything that may not leave."""
        return not self.is_open or bool(self.rules) or self.sources is not None or self.requests != frozenset(Request)

    def refusing_line(self, request: Request, subject: Subject) -> int | None:
        """Of what refuses the request; None: it is granted."""
        if request not in self.requests:
            return self.requests_line
        return self._refusing_source(subject)

    def _refusing_source(self, subject: Subject) -> int | None:
        if self.sources is None or (subject.is_own and subject.source in self.sources):
            return None
        return self.sources_line

    def ruling(self, database: str, table: str, subject: Subject) -> Ruling:
        """
        >>> orders = Rule(3, Pattern("shop"), Pattern("orders"), leaves=True, only=("id",))
        >>> closed = Policy("policy.yaml", is_open=False, rules=(orders,))
        >>> found = closed.ruling("shop", "orders", Subject())
        >>> found.leaves, found.line, found.columns.ignores("ID"), found.columns.ignores("note")
        (True, 3, False, True)
        >>> closed.ruling("shop", "Orders", Subject()).leaves, closed.ruling("shop", "items", Subject()).leaves
        (False, False)
        """
        refusing = self._refusing_source(subject)
        if refusing is not None:
            return Ruling(leaves=False, line=refusing)
        names = (table, *subject.copied_tables(table))
        speaking = [rule for rule in self.rules if _keeps_back(rule, database, names, subject)]
        denying = next((rule for rule in speaking if not rule.leaves), None)
        if denying is not None:
            return Ruling(leaves=False, line=denying.line)
        granting = next((rule for rule in speaking if _lets_leave(rule, database, table, subject)), None)
        if granting is None and not self.is_open:
            return Ruling(leaves=False)
        columns = ALL_COLUMNS
        for rule in speaking:
            columns &= _columns_of(rule, subject)
        decisive = next((rule for rule in speaking if rule.only is not None or rule.ignored_columns), granting)
        return Ruling(leaves=True, line=decisive.line if decisive else DEFAULT_LINE, columns=columns)

    def denies_by_name(self, database: str, table: str, subject: Subject) -> bool:
        """Whether a line names the table to keep it back, as it may name a partition of another one."""
        return any(not rule.leaves and _keeps_back(rule, database, (table,), subject) for rule in self.rules)

    def masked_columns(self, database: str, table: str, subject: Subject) -> frozenset[str]:
        """Case-folded names of columns that lines for this one table keep back.

        A table that lacks one of them may have it under another name.
        """
        return frozenset(
            name.casefold()
            for rule in self.rules
            if rule.is_of_one and _keeps_back(rule, database, (table,), subject)
            for name in rule.ignored_columns
        )

    def lets_come(self, database: str, table: str, origin: tuple[str, str], subject: Subject) -> bool:
        """Whether a line lets the table leave although it had a name that stays."""
        return any(
            ".".join(origin) in rule.renamed_from and _lets_leave(rule, database, table, subject) for rule in self.rules
        )


NO_POLICY = Policy()


def _lets_leave(rule: Rule, database: str, table: str, subject: Subject) -> bool:
    is_meant = not rule.sources or (subject.is_own and subject.source in rule.sources)
    return rule.leaves and is_meant and rule.database.is_exactly(database) and rule.table.is_exactly(table)


def _keeps_back(rule: Rule, database: str, names: Iterable[str], subject: Subject) -> bool:
    is_meant = not rule.sources or not subject.is_own or subject.source in rule.sources
    return is_meant and rule.database.may_be(database) and any(map(rule.table.may_be, names))


def _columns_of(rule: Rule, subject: Subject) -> ColumnVeto:
    only = None if rule.only is None else frozenset(map(subject.fold, rule.only))
    return ColumnVeto(only, frozenset(name.casefold() for name in rule.ignored_columns), subject.fold)
