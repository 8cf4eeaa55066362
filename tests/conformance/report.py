"""Findings as a document: agent/CONFORMANCE.md. Findings in, text out; the same findings give the same text."""

from collections.abc import Collection, Iterable, Mapping

from agent.sources.mysql.log import constants
from tests.conformance import by_hand
from tests.conformance.flows import FLOWS
from tests.conformance.keys import keys_section
from tests.conformance.postgresql import cases as postgresql_cases
from tests.conformance.run import DECODED, Findings
from tests.conformance.stops import SOURCE_STOPS, STOPS, Stop
from tests.servers import ROOT

DOCUMENT = ROOT / "agent" / "CONFORMANCE.md"
NOT_THERE = "not there"

_HEAD = """\
# What is decoded, and what stops

Made by `python -m tests.conformance`; a test fails when what it finds is no longer what stands here. Every cell was
run: statements on the real server, its log read by a real agent, the rows that came out compared with a SELECT.

- **decoded**: the rows are those of the server, value for value.
- **re-read**: rows changed that the log does not hold. The table goes on, an event says why earlier rows may be stale,
  and a dump is ordered that brings them (tests/e2e/test_rereads.py shows its end).
- **not sent**: as decoded, but for generated columns whose new values the log lacks. The table goes on without them,
  and an event says so (tests/agent/test_unlogged_columns.py).
- An error's code: the table (`TABLE_...`), or the source, stopped at that position and said why. Its rows up to there
  are complete, and nothing after them was read.
- **WRONG**: the rows differ: a defect of ours that is not yet mended, and shown here until it is.
- {not_there}: this server has no such type, setting or statement.

Nothing is skipped.
"""
_MYSQL = """
## MySQL and MariaDB
"""
_POSTGRESQL = """
## PostgreSQL

Generated columns are neither logged nor dumped, and are not sent: a table with one is compared without it. Such a table
keeps its default replica identity under `REPLICA IDENTITY FULL`: version 18 refuses changes of a published table whose
identity has a generated column, as a line of its own shows.
"""
_TYPES = """
### {server}: types under each setting

Each type has a table of its own, in which rows are inserted with the type's edges and NULL, updated (the column, the
one beside it, the key) and deleted. A setting under which every type is decoded has one line.

"""
_FLOWS = """
### Statements

One table is compared; what else a line names is there beside it. An event of 1 GiB, which no server writes within a
test's time, is put together and decoded by tests/agent/native/test_events.py; a single value above 240 MiB stops its
table.

"""
_POSTGRESQL_FLOWS = """
### Statements

One table is compared; what else a line names is there beside it. What a statement did that no message tells, a look at
the catalog finds, which the case waits for. The agent's user is a member of the role that owns the tables.

"""
_EVENTS = """
### Events

What became of the cases above in whose log the event was: decoded, re-read, or why every one of them stopped.
{not_there}: no log of this server held it. The last column says what it was shown with:

- **real log**: what a server wrote and the agent read.
- **real stream**: heartbeats, which a server sends while nothing is logged.
- **by hand**: no server here writes it, for the reason given. One that was put together as the servers' sources lay it
  out was given to the agent's reader or decoder, with this result.
- **holds no row**: read on behind it; what needs it, such as a logged statement, is dealt with where it stands.

"""
_MESSAGES = """
### Messages

What became of the cases above in whose part of the log pgoutput had the message: decoded, or why every one of them
stopped. These are all messages of the protocol's version 1, which is the one that the agent asks for.

"""
_STOPS = """
## Why a table stops

All reasons that a source can give while the agent's settings are the default ones. Each is told with the table's state,
the position and what to do; the other tables go on. `make churn` changes sources in every way for as long as one likes
and takes no other stop than these, and no difference.

"""
_SOURCE_STOPS = """
## Why a source stops

A server that is not the one that was read stops its whole source before anything of it is read, until somebody
accepts it.

"""
_SERVERS = """
## Servers

Run here: {servers}.

Accepted and not run: MySQL from 8.0 on, MariaDB from 10.5 on. By their sources they write the formats above, and MySQL
8.0 two events that 9.7 does not: rows events of version 1 (`log_bin_use_v1_row_events`), which MariaDB's logs show
here, and VIEW_CHANGE in replication groups. What another server writes that is not in these tables stops its source.
PostgreSQL 14 and 17 are run by `make churn` and by tests of the agent.
"""
Of = Mapping[str, Findings]


def document(mysql: Of, keys: Mapping[str, Mapping[str, str]], postgresql: Of) -> str:
    """By server; `keys`: as `keys.examine_keys` finds them."""
    head, servers = _HEAD.format(not_there=NOT_THERE), _SERVERS.format(servers=", ".join([*mysql, *postgresql]))
    return head + mysql_section(mysql, keys) + postgresql_section(postgresql) + stops() + servers


def mysql_section(findings: Of, keys: Mapping[str, Mapping[str, str]]) -> str:
    parts = [_MYSQL, *_of_types(findings), _FLOWS, _flows(findings, [flow.name for flow in FLOWS]), keys_section(keys)]
    return "".join([*parts, _EVENTS.format(not_there=NOT_THERE), _events(findings)])


def postgresql_section(findings: Of) -> str:
    names = [flow.name for flow in postgresql_cases.FLOWS]
    parts = [_POSTGRESQL, *_of_types(findings), _POSTGRESQL_FLOWS, _flows(findings, names)]
    return "".join([*parts, _MESSAGES, _messages(findings)])


def stops() -> str:
    """The reasons, which no run finds: they are listed, and each names a test that shows it."""
    of_tables = "\n".join(f"### {kind}: reasons\n\n{_reasons(found)}" for kind, found in STOPS.items())
    return _STOPS + of_tables + _SOURCE_STOPS + _reasons(SOURCE_STOPS)


def _reasons(found: Iterable[Stop]) -> str:
    lines = ["| reason | when | shown by |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {stop.code} | {stop.why} | {stop.shown_by} |" for stop in found)]) + "\n"


def _of_types(findings: Of) -> list[str]:
    return [part for name, found in findings.items() for part in (_TYPES.format(server=name), _types(found))]


def _types(found: Findings) -> str:
    lines = ["| setting | types decoded | other types |", "|---|---|---|"]
    for setting, outcomes in found.types.items():
        stopped: dict[str, list[str]] = {}
        for name, outcome in outcomes.items():
            if outcome != DECODED:
                stopped.setdefault(outcome, []).append(name)
        count = len(outcomes) - sum(map(len, stopped.values()))
        words = "; ".join(
            f"{code}: {'all' if len(names) == len(outcomes) else ', '.join(f'`{name}`' for name in names)}"
            for code, names in stopped.items()
        )
        lines.append(f"| {setting} | {'all ' if not stopped else ''}{count} | {words or 'none'} |")
    names = list(dict.fromkeys(name for outcomes in found.types.values() for name in outcomes))
    listed = ", ".join(f"`{name}`" for name in names)
    return "\n".join(lines) + f"\n\nThe types: {listed}.\n"


def _flows(findings: Of, names: Iterable[str]) -> str:
    rows = {name: [found.flows.get(name, NOT_THERE) for found in findings.values()] for name in dict.fromkeys(names)}
    return _table("statements", findings, rows)


def _messages(findings: Of) -> str:
    rows = {
        f"{name} ({kind})": [found.outcome(kind) or NOT_THERE for found in findings.values()]
        for kind, name in postgresql_cases.MESSAGES.items()
    }
    return _table("message", findings, rows)


def _events(findings: Of) -> str:
    numbers = {
        name: number
        for name, number in vars(constants).items()
        if name.isupper() and "_EVENT" in name and not name.startswith("LOG_EVENT_")
    }
    rows = {}
    for name in sorted(numbers, key=numbers.__getitem__):
        logged = [found.outcome(name) for found in findings.values()]
        sent = [found.sent.get(name, "") for found in findings.values()]
        seen = [in_log or in_stream or NOT_THERE for in_log, in_stream in zip(logged, sent, strict=True)]
        rows[f"{name} ({numbers[name]})"] = [*seen, _shown(numbers[name], any(logged), any(sent))]
    return _table("event", [*findings, "shown with"], rows)


def _shown(number: int, is_logged: bool, is_sent: bool) -> str:
    if is_logged:
        return "real log"
    return "real stream" if is_sent else f"by hand: {by_hand.outcome(number)} ({by_hand.WHY[number]})"


def _table(first: str, names: Collection[str], rows: Mapping[str, list[str]]) -> str:
    lines = [f"| {first} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    return "\n".join(lines) + "\n"
