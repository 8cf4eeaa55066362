"""The policy in force, and what it says to one source. Read from any thread; replaced at SIGHUP as a whole."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from menura.naming import sync_resync
from menura.v1.catalog_pb2 import ForeignKeyCard, TableCard

from agent.errors import PolicyDenied, PolicyUnusable
from agent.server_words import SERVER_WORDS
from agent.veto.policy import DEFAULT_LINE, NO_POLICY, ColumnVeto, Policy, Request, Ruling, Subject
from agent.veto.policy_file import DEFAULT_FILE, read_policy

log = logging.getLogger("menura.policy")

Table = tuple[str, str]
#: of rulings, and of names that stay, which are kept for a source
MOST_KEPT = 100_000
#: of refusals of one source that were logged since the policy was read: what comes later is counted
MOST_LOGGED = 1_000
_UNREAD = "No row of it leaves the database's host"


class HasPolicy(Protocol):
    @property
    def policy(self) -> Policy: ...


@dataclass(frozen=True, slots=True)
class GivenPolicy:
    """One that stays as it is."""

    policy: Policy


class LocalPolicy:
    def __init__(self, policy: Policy = NO_POLICY, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._policy = policy
        self._vetoes: dict[str, SourceVeto] = {}
        SERVER_WORDS.may_leave = not policy.keeps_back

    @classmethod
    def read(cls, path: Path | None) -> "LocalPolicy":
        """`path` None: the default file, which need not be there. Raises `PolicyUnusable`."""
        policy = read_policy(path)
        if not policy.file:
            found = f"there is no {DEFAULT_FILE}: what may leave this host is what the sources' filters say"
            log.info("no policy", extra={"fields": {"found": found}})
        return cls(policy, Path(policy.file) if policy.file else path)

    @property
    def policy(self) -> Policy:
        return self._policy

    def read_again(self) -> bool:
        """At SIGHUP: whether another policy is in force now. Raises `PolicyUnusable`: the former one is."""
        try:
            policy = read_policy(self._path)
        except PolicyUnusable as unusable:
            found = "the former policy stays in force, and nothing leaves that it keeps back"
            log.error("the policy can't be read", extra={"fields": {"error": str(unusable), "found": found}})  # noqa: TRY400
            raise
        with self._lock:
            is_other = policy != self._policy
            if is_other:  # who compares two looks goes by the object: nothing is read anew for an equal one
                self._policy = policy
            self._path = Path(policy.file) if policy.file else self._path
            SERVER_WORDS.may_leave = not policy.keeps_back
        log.info("policy read", extra={"fields": {"file": policy.file, "is_other": is_other}})
        return is_other

    def of(self, subject: Subject) -> "SourceVeto":
        """For a source; the same for all that run, or are tried, under its name."""
        with self._lock:
            veto = self._vetoes.get(subject.source)
            if veto is None or veto.subject != subject:
                veto = self._vetoes[subject.source] = SourceVeto(self, subject)
        return veto

    def of_source(self, source: str) -> "SourceVeto | None":
        return self._vetoes.get(source)


class SourceVeto:
    """What the policy in force says to one source."""

    def __init__(self, local: HasPolicy, subject: Subject) -> None:
        self._local = local
        self.subject = subject
        self._lock = threading.Lock()
        self._asked_of: Policy = NO_POLICY
        self._rulings: OrderedDict[Table, Ruling] = OrderedDict()
        self._logged: set[tuple[str, int]] = set()
        #: partitions that hold the rows of a table, as the source has told last
        self._parts: Mapping[Table, frozenset[Table]] = {}
        #: columns that a look at the server's tables saw stay
        self._hidden_columns: dict[Table, frozenset[str]] = {}

    @property
    def keeps_back(self) -> bool:
        return self._local.policy.keeps_back

    @property
    def policy(self) -> Policy:
        return self._local.policy

    def under(self, policy: Policy) -> "SourceVeto":
        """What another policy says to the same source."""
        other = SourceVeto(GivenPolicy(policy), self.subject)
        other._parts = self._parts
        return other

    def ruling(self, database: str, table: str) -> Ruling:
        """Of a table as it is called now; it stays where a line denies one of its partitions."""
        policy, name = self._local.policy, (database, table)
        with self._lock:
            if policy is not self._asked_of:
                self._asked_of, self._rulings, self._logged = policy, OrderedDict(), set()
            found, parts = self._rulings.get(name), self._parts
        if found is not None:
            return found
        found = policy.ruling(database, table, self.subject)
        denied_parts = (part for part in parts.get(name, ()) if self.denies_by_name(part))
        if found.leaves and next(denied_parts, None) is not None:
            found = Ruling(leaves=False, line=found.line)
        with self._lock:
            if policy is self._asked_of and parts is self._parts:  # else somebody has told others meanwhile
                self._rulings[name] = found
                while len(self._rulings) > MOST_KEPT:
                    self._rulings.popitem(last=False)
        return found

    def ruling_by_name(self, table: Table) -> Ruling:
        """The same without a look at the table's partitions."""
        return self._local.policy.ruling(*table, self.subject)

    def denies_by_name(self, table: Table) -> bool:
        return self._local.policy.denies_by_name(*table, self.subject)

    def masked_tables(self) -> frozenset[str]:
        """Names, without their databases, of tables of which a line keeps back columns by name."""
        rules = self._local.policy.rules
        return frozenset(rule.table.text for rule in rules if rule.is_of_one and rule.ignored_columns)

    def masked_columns(self, table: Table) -> frozenset[str]:
        return self._local.policy.masked_columns(*table, self.subject)

    def lets_come(self, table: Table, origin: Table) -> bool:
        """Whether the policy lets a table leave although it stayed under its former name."""
        return self._local.policy.lets_come(*table, origin, self.subject)

    def parts_are(self, parts: Mapping[Table, Iterable[Table]]) -> None:
        """Which partitions hold the rows of which tables: of all that there are."""
        found = {table: frozenset(of_table) for table, of_table in parts.items()}
        with self._lock:
            for table in found.keys() | self._parts.keys():
                self._rulings.pop(table, None)
            self._parts = found

    def part_came(self, table: Table, part: Table) -> None:
        """One more."""
        with self._lock:
            self._parts = {**self._parts, table: self._parts.get(table, frozenset()) | {part}}
            self._rulings.pop(table, None)

    # --- requests

    def refusal(self, request: Request) -> PolicyDenied | None:
        """None: the gateway may have it."""
        line = self._local.policy.refusing_line(request, self.subject)
        if line is None:
            return None
        self._tell(f"request {request}", line)
        source = self.subject.source
        return PolicyDenied(
            f"answering a request for {request}",
            "the policy of the database's host grants it to no gateway",
            data="Nothing of it leaves the database's host",
            remedy="The database's owner may name it in the host's policy, and send the agent SIGHUP",
            source=source,
        )

    def denial(self, table: Table, what: str = "lets the table leave to no gateway") -> PolicyDenied:
        """Why a table that a gateway has named stays; it says nothing else of the table."""
        self._tell(".".join(table), self.ruling(*table).line)
        source = self.subject.source
        return PolicyDenied(
            "starting a table's sync",
            f"the policy of the database's host {what}",
            data=_UNREAD,
            remedy="The database's owner may name it in the host's policy, and send the agent SIGHUP; then run:"
            f" {sync_resync(source, *table)}",
            source=source,
            database=table[0],
            table=table[1],
        )

    def key_denial(self, table: Table) -> PolicyDenied:
        return self.denial(table, "keeps back what is in the table's key, and without it no change finds its row")

    def took_out(self, what: str) -> None:
        """The second look took something out of a message, or had it stay."""
        if self._is_news(what, DEFAULT_LINE):
            log.error("taken out of a message", extra={"fields": {"source": self.subject.source, "what": what}})

    def _is_news(self, what: str, line: int) -> bool:
        """Each once for each policy."""
        with self._lock:
            if (what, line) in self._logged or len(self._logged) >= MOST_LOGGED:
                return False
            self._logged.add((what, line))
            return True

    def _tell(self, what: str, line: int) -> None:
        if not self._is_news(what, line):
            return
        policy = self._local.policy
        where = f"line {line}" if line != DEFAULT_LINE else f"default: {'open' if policy.is_open else 'closed'}"
        fields = {"source": self.subject.source, "refused": what, "policy": policy.file, "decided_by": where}
        log.warning("refused by the policy", extra={"fields": fields})

    # --- cartography

    def cards(
        self, cards: Iterable[TableCard], column_veto: Callable[[Table], ColumnVeto | None]
    ) -> Iterable[TableCard]:
        """Tables that may be known, with the columns that may be known. `column_veto` None: the table itself stays."""
        if not self.keeps_back:
            yield from cards
            return
        hidden: dict[Table, frozenset[str]] = {}
        #: what a parent keeps back is known once all tables are read
        with_foreign_keys: list[TableCard] = []
        for card in cards:
            name = (card.table.database, card.table.table)
            kept_back = column_veto(name)
            if kept_back is not None:
                gone = without_columns(card, kept_back)
                if gone:
                    hidden[name] = gone
                if card.foreign_keys:
                    with_foreign_keys.append(card)
                else:
                    yield card
            elif len(hidden) < MOST_KEPT:
                hidden[name] = frozenset()

        def keeps(table: Table, column: str) -> bool:
            of_table = column_veto(table)
            return of_table is None or of_table.ignores(column) or column in hidden.get(table, ())

        for card in with_foreign_keys:
            without_foreign_keys(card, keeps)
            yield card
        self._hidden_columns = hidden

    @property
    def hidden(self) -> Mapping[Table, frozenset[str]]:
        """Tables that stay, without columns, and tables of which these stay: of the last look."""
        return self._hidden_columns


def without_columns(card: TableCard, veto: ColumnVeto) -> frozenset[str]:
    """Take out of the card what its table keeps back, with keys of it; the names of those columns.

    What is computed from such columns stays too: the source marks it as ignored.
    """
    if not veto:
        return frozenset()
    gone = frozenset(column.name for column in card.columns if column.ignored or veto.ignores(column.name))
    columns = [column for column in card.columns if column.name not in gone]
    keys = [key for key in card.keys if key.columns and gone.isdisjoint(key.columns)]
    if gone or len(keys) != len(card.keys):
        del card.columns[:]
        card.columns.extend(columns)
        del card.keys[:]
        card.keys.extend(keys)
    return gone


def without_foreign_keys(card: TableCard, keeps: Callable[[Table, str], bool]) -> bool:
    """Take out of the card each foreign key that names what stays; whether there was one.

    `keeps`: whether a table stays, or this column of it.
    """
    child = (card.table.database, card.table.table)

    def may_tell(key: ForeignKeyCard) -> bool:
        parent = (key.parent.database, key.parent.table)
        return bool(key.columns and key.parent_columns) and not (
            any(keeps(child, name) for name in key.columns) or any(keeps(parent, name) for name in key.parent_columns)
        )

    told = [key for key in card.foreign_keys if may_tell(key)]
    if len(told) == len(card.foreign_keys):
        return False
    del card.foreign_keys[:]
    card.foreign_keys.extend(told)
    return True


NO_VETO = LocalPolicy().of(Subject())
