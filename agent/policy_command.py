"""`menura agent policy test`: what would leave this host, and which line of the policy decides.

Comes in: the policy, the agent's configuration, and what its servers have, or names that are given. Goes out: a line
for each table, and for each column of one that leaves, or all of it as one document. Nothing is sent to a gateway.
With names alone no server is asked: then it is not known which columns there are, and the list of the policy stands
for them.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from menura import output
from menura.errors import printable
from menura.v1.catalog_pb2 import TableCard

from agent.check_command import said
from agent.config import load
from agent.errors import ConfigError, PolicyDenied, SourceError
from agent.filter import Filter
from agent.pipeline import Agent
from agent.veto.local_policy import LocalPolicy
from agent.veto.policy import DEFAULT_LINE, ColumnVeto, Policy, Request, Subject

HELP = "show what would leave this host, and which line of the policy decides"


@dataclass(frozen=True, slots=True)
class Shown:
    """Of a request, of a table or of a column: whether it leaves, and why."""

    leaves: bool
    why: str
    request: str = ""
    source: str = ""
    database: str = ""
    table: str = ""
    column: str = ""
    #: of a table of which only the name is known: which ones would leave
    columns: ColumnVeto | None = None

    def line(self) -> str:
        word = "leaves" if self.leaves else "stays"
        if self.request:
            return printable(f"request {self.request}: {word} ({self.why})")
        what = ".".join(filter(None, (self.database, self.table, self.column)))
        if self.columns is not None:
            what, word = f"{what}, its columns", _columns(self.columns)
        return printable(f"{self.source}: {what}: {word} ({self.why})")

    def entry(self) -> dict[str, object]:
        """What is not said is left out."""
        names = ("request", "source", "database", "table", "column")
        said = {name: getattr(self, name) for name in names if getattr(self, name)}
        if self.columns is not None:
            only = None if self.columns.only is None else sorted(self.columns.only)
            said |= {"only_columns": only, "ignored_columns": sorted(self.columns.ignored)}
        return {**said, "leaves": self.leaves, "why": self.why}


def run(config: Path | None, policy: Path | None, tables: list[str], form: str) -> int:
    """Print it; the exit code. Raises a `ConfigError`, or a `GatewayError` of the agent's identity."""
    put = _Put(form)
    exit_code = _rule(config, policy, [_name(text) for text in tables], put)
    if form != output.TABLE:
        print(output.document({"exit_code": exit_code, "rulings": put.entries, "errors": put.errors}, form))
    return exit_code


class _Put:
    """Lines as they come, or entries for a document."""

    def __init__(self, form: str) -> None:
        self._prints = form == output.TABLE
        self.entries: list[dict[str, object]] = []
        self.errors: list[dict[str, object]] = []

    def __call__(self, shown: Iterator[Shown]) -> None:
        for each in shown:
            if self._prints:
                print(each.line())
            else:
                self.entries.append(each.entry())


def _rule(config: Path | None, policy: Path | None, names: list[tuple[str, str]], put: _Put) -> int:
    if config is None:
        if not names:
            raise ConfigError("reading the command", "it names no tables", remedy="Give --config FILE, or --table NAME")
        local = LocalPolicy.read(policy)
        return _of_names(local.policy, {"any source": Filter(veto=local.of(Subject("")))}, names, put)
    settings = load(config)
    agent = Agent(settings if policy is None else replace(settings, policy=policy))
    if names:
        return _of_names(agent.policy, {source.name: source.filter for source in agent.sources()}, names, put)
    return _of_servers(agent, put)


def _name(text: str) -> tuple[str, str]:
    database, dot, table = text.partition(".")
    if not dot or not database or not table:
        raise ConfigError("reading the command", f"{text!r} is not DATABASE.TABLE", remedy="Give --table shop.orders")
    return database, table


def _of_names(policy: Policy, filters: dict[str, Filter], names: list[tuple[str, str]], put: _Put) -> int:
    put(requests(policy))
    for source, filter_ in filters.items():
        for database, table in names:
            put(of_name(source, filter_, database, table))
    all_leave = all(filter_.verdict(*name).allowed for filter_ in filters.values() for name in names)
    return 0 if all_leave else PolicyDenied.exit_code


def _of_servers(agent: Agent, put: _Put) -> int:
    """What can't be asked is told, and the others are."""
    put(requests(agent.policy))
    failed: SourceError | None = None
    for source in agent.sources():
        try:
            for card in agent.tables(source.name):
                put(of_card(source.name, source.filter, card))
        except SourceError as error:
            failed = failed or error
            put.errors.append(said(error))
            print(f"{source.name}: {error}", file=sys.stderr)
    return failed.exit_code if failed is not None else 0


def requests(policy: Policy) -> Iterator[Shown]:
    why = _by(policy, policy.requests_line)
    for request in Request:
        yield Shown(request in policy.requests, why, request=request)


def of_card(source: str, filter_: Filter, card: TableCard) -> Iterator[Shown]:
    """Of a table that is on the server; `ignored` columns of it are the filter's, and those computed from others."""
    whole = _table(source, filter_, card.table.database, card.table.table)
    yield whole
    if not whole.leaves:
        return
    verdict, ruling = filter_.verdict(whole.database, whole.table), filter_.veto.ruling(whole.database, whole.table)
    for column in card.columns:
        why = whole.why
        if column.ignored and not ruling.columns.ignores(column.name):
            why = "the source's filter, or computed from a column that stays"
        leaves = not (column.ignored or verdict.ignores(column.name))
        yield replace(whole, leaves=leaves, why=why, column=column.name)


def of_name(source: str, filter_: Filter, database: str, table: str) -> Iterator[Shown]:
    """Of a table of which only the name is known."""
    whole = _table(source, filter_, database, table)
    yield whole
    if whole.leaves:
        yield replace(whole, columns=filter_.veto.ruling(database, table).columns)


def _table(source: str, filter_: Filter, database: str, table: str) -> Shown:
    ruling, leaves = filter_.veto.ruling(database, table), filter_.verdict(database, table).allowed
    why = "the source's filter" if ruling.leaves and not leaves else _by(filter_.veto.policy, ruling.line)
    return Shown(leaves, why, source=source, database=database, table=table)


def _columns(columns: ColumnVeto) -> str:
    only = f"only {', '.join(sorted(columns.only))}" if columns.only is not None else "all"
    return only + (f", without {', '.join(sorted(columns.ignored))}" if columns.ignored else "")


def _by(policy: Policy, line: int) -> str:
    if line != DEFAULT_LINE:
        return f"{policy.file} line {line}"
    if not policy.file:
        return "there is no policy"
    return f"{policy.file} default: {'open' if policy.is_open else 'closed'}"
