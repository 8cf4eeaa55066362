"""Findings as a document: agent/CONFORMANCE.md. Findings in, text out; the same findings give the same text."""

import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from agent.errors import SourceConnectionLost
from agent.mysql.log import constants
from tests.agent.test_rare_events import event, read
from tests.conformance import cases
from tests.conformance.run import DECODED, Findings
from tests.servers import ROOT

DOCUMENT = ROOT / "agent" / "CONFORMANCE.md"
NOT_THERE = "not there"
IN_THE_LOG = "in the log"
NO_ROW = "holds no row"

_HEAD = """\
# What is decoded, and what stops

Made by `python -m tests.conformance`; a test fails when what it finds is no longer what stands here. Every cell was
run: statements on the real server, its log read by a real agent, the rows that came out compared with a SELECT.

- **decoded**: the rows are those of the server, value for value.
- An error's code: the table (`TABLE_...`), or the source, stopped at that position and said why. Its rows up to there
  are complete, and nothing after them was read.
- **WRONG**: the rows differ: a defect of ours that is not yet mended, and shown here until it is.
- {not_there}: this server has no such type, setting or statement.

Nothing is skipped.
"""
_TYPES = """
## {server}: types under each setting

Each type has a table of its own, in which rows are inserted with the type's edges and NULL, updated (the column, the
one beside it, the key) and deleted. A setting under which every type is decoded has one line.

"""
_FLOWS = """
## Statements

"""
_EVENTS = """
## Events

Whether the server's log held the event under any of the settings and statements above. {not_there}: it did not. One
that no server's log held was made by hand, its body all zeros, and given to the agent's reader, which did this:

- **holds no row**: read on behind it. What needs it, such as a logged statement, stops where it stands.
- An error's code: the source stopped before it.

"""


def document(findings: Mapping[str, Findings]) -> str:
    parts = [_HEAD.format(not_there=NOT_THERE)]
    for name, found in findings.items():
        parts += [_TYPES.format(server=name), _types(found)]
    parts += [_FLOWS, _flows(findings), _EVENTS.format(not_there=NOT_THERE), _events(findings)]
    return "".join(parts)


def _types(found: Findings) -> str:
    lines = ["| setting | types decoded | types that stop |", "|---|---|---|"]
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


def _flows(findings: Mapping[str, Findings]) -> str:
    names = dict.fromkeys(flow.name for flow in cases.FLOWS)
    rows = {name: [found.flows.get(name, NOT_THERE) for found in findings.values()] for name in names}
    return _table("statements", findings, rows)


def _events(findings: Mapping[str, Findings]) -> str:
    numbers = {
        name: number
        for name, number in vars(constants).items()
        if name.isupper() and "_EVENT" in name and not name.startswith("LOG_EVENT_")
    }
    rows = {}
    for name in sorted(numbers, key=numbers.__getitem__):
        seen = [name in found.events for found in findings.values()]
        given = "" if any(seen) else _given(numbers[name])
        rows[f"{name} ({numbers[name]})"] = [*(IN_THE_LOG if held else NOT_THERE for held in seen), given]
    return _table("event", [*findings, "made by hand"], rows)


def _given(number: int) -> str:
    """What the agent's reader does with an event of this type whose body is all zeros."""
    flags = constants.LOG_EVENT_IGNORABLE_F if number == constants.IGNORABLE_LOG_EVENT else 0
    with tempfile.TemporaryDirectory() as folder:
        _, error = read(Path(folder), event(number, bytes(30), end=900, flags=flags))
    return NO_ROW if isinstance(error, SourceConnectionLost) else str(error.code)


def _table(first: str, names: Collection[str], rows: Mapping[str, list[str]]) -> str:
    lines = [f"| {first} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    return "\n".join(lines) + "\n"
