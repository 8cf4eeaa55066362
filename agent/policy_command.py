"""`menura agent policy test`: what would leave this host, and which line of the policy decides.

Comes in: the policy, the agent's configuration, and what its servers have, or names that are given. Goes out: a line
for each table, and for each column of one that leaves. Nothing is sent to a gateway. With names alone no server is
asked: then it is not known which columns there are, and the list of the policy stands for them.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from menura.errors import printable
from menura.v1.catalog_pb2 import TableCard

from agent.config import load
from agent.errors import ConfigError, PolicyDenied, SourceError
from agent.filter import Filter
from agent.pipeline import Agent
from agent.veto.local_policy import LocalPolicy
from agent.veto.policy import DEFAULT_LINE, Policy, Request, Ruling, Subject

HELP = "show what would leave this host, and which line of the policy decides"
LEAVES, STAYS = "leaves", "stays"


def run(config: Path | None, policy: Path | None, tables: list[str]) -> int:
    """Print a line for each; the exit code. Raises a `ConfigError`, or a `GatewayError` of the agent's identity."""
    names = [_name(text) for text in tables]
    if config is None:
        if not names:
            raise ConfigError("reading the command", "it names no tables", remedy="Give --config FILE, or --table NAME")
        local = LocalPolicy.read(policy)
        return _of_names(local.policy, {"any source": Filter(veto=local.of(Subject("")))}, names)
    settings = load(config)
    agent = Agent(settings if policy is None else replace(settings, policy=policy))
    if names:
        return _of_names(agent.policy, {source.name: source.filter for source in agent.sources()}, names)
    return _of_servers(agent)


def _name(text: str) -> tuple[str, str]:
    database, dot, table = text.partition(".")
    if not dot or not database or not table:
        raise ConfigError("reading the command", f"{text!r} is not DATABASE.TABLE", remedy="Give --table shop.orders")
    return database, table


def _of_names(policy: Policy, filters: dict[str, Filter], names: list[tuple[str, str]]) -> int:
    _print(requests(policy))
    for source, filter_ in filters.items():
        for database, table in names:
            _print(of_name(source, filter_, database, table))
    all_leave = all(filter_.verdict(*name).allowed for filter_ in filters.values() for name in names)
    return 0 if all_leave else PolicyDenied.exit_code


def _of_servers(agent: Agent) -> int:
    """What can't be asked is told, and the others are."""
    _print(requests(agent.policy))
    failed: SourceError | None = None
    for source in agent.sources():
        try:
            for card in agent.tables(source.name):
                _print(of_card(source.name, source.filter, card))
        except SourceError as error:
            failed = failed or error
            print(f"{source.name}: {error}", file=sys.stderr)
    return failed.exit_code if failed is not None else 0


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        print(line)


def requests(policy: Policy) -> Iterator[str]:
    for request in Request:
        word = LEAVES if request in policy.requests else STAYS
        yield f"request {request}: {word} ({_by(policy, policy.requests_line)})"


def of_card(source: str, filter_: Filter, card: TableCard) -> Iterator[str]:
    """Of a table that is on the server; `ignored` columns of it are the filter's, and those computed from others."""
    database, table = card.table.database, card.table.table
    yield from _table(source, filter_, database, table)
    verdict = filter_.verdict(database, table)
    if not verdict.allowed:
        return
    policy, ruling = filter_.veto.policy, filter_.veto.ruling(database, table)
    for column in card.columns:
        why = _by(policy, ruling.line)
        if column.ignored and not ruling.columns.ignores(column.name):
            why = "the source's filter, or computed from a column that stays"
        word = STAYS if column.ignored or verdict.ignores(column.name) else LEAVES
        yield _line(source, f"{database}.{table}.{column.name}", word, why)


def of_name(source: str, filter_: Filter, database: str, table: str) -> Iterator[str]:
    """Of a table of which only the name is known."""
    yield from _table(source, filter_, database, table)
    ruling = filter_.veto.ruling(database, table)
    if filter_.verdict(database, table).allowed:
        yield _line(source, f"{database}.{table}, its columns", _columns(ruling), _by(filter_.veto.policy, ruling.line))


def _table(source: str, filter_: Filter, database: str, table: str) -> Iterator[str]:
    ruling = filter_.veto.ruling(database, table)
    why = _by(filter_.veto.policy, ruling.line)
    if ruling.leaves and not filter_.verdict(database, table).allowed:
        why = "the source's filter"
    word = LEAVES if filter_.verdict(database, table).allowed else STAYS
    yield _line(source, f"{database}.{table}", word, why)


def _columns(ruling: Ruling) -> str:
    columns = ruling.columns
    only = f"only {', '.join(sorted(columns.only))}" if columns.only is not None else "all"
    return only + (f", without {', '.join(sorted(columns.ignored))}" if columns.ignored else "")


def _by(policy: Policy, line: int) -> str:
    if line != DEFAULT_LINE:
        return f"{policy.file} line {line}"
    if not policy.file:
        return "there is no policy"
    return f"{policy.file} default: {'open' if policy.is_open else 'closed'}"


def _line(source: str, what: str, word: str, why: str) -> str:
    return printable(f"{source}: {what}: {word} ({why})")
