"""A corpus of statements, one by one on a real server: what is tracked equals information_schema after each.

A file is a theme and starts on an empty server with a database `t`. A statement that a server refuses counts for the
other only. `-- unsure SERVER: tables` before a statement: what the tracker must call unsure there, and nothing else.
At a file's end the row events of all tables must fit what is tracked, too.
"""

import re
from pathlib import Path

import pytest

from tests.agent.ddl.tracking import Tracking, row_differences
from tests.servers import Flavor

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.sql"))
_UNSURE = re.compile(r"-- unsure (mysql|mariadb|both): (.+)")


def statements(text: str) -> list[tuple[str, dict[str, list[str]]]]:
    """(statement, tables by server that must be unsure)"""
    found: list[tuple[str, dict[str, list[str]]]] = []
    unsure: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        marked = _UNSURE.fullmatch(line)
        if marked and not lines:
            unsure |= {name: marked[2].split(", ") for name in ("mysql", "mariadb") if marked[1] in (name, "both")}
        elif lines or (line.strip() and not line.startswith("-- ")):
            lines.append(line)
            if line.endswith(";"):
                found.append(("\n".join(lines)[:-1], unsure))
                unsure, lines = {}, []
    assert not lines, f"no ; after {lines}"
    return found


def follow(tracked: Tracking, theme: Path, flavor: str) -> tuple[int, set[int], list[str]]:
    """How many statements were logged, which ran, and what went wrong."""
    tracked.reset()
    ran, failures, logged = set(), [], 0
    for number, (text, unsure) in enumerate(statements(theme.read_text())):
        outcome = tracked.run(text)
        if not outcome.refused or outcome.statements:
            ran.add(number)
        logged += len(outcome.statements)
        wanted = unsure.get(flavor, []) if not outcome.refused else []
        found = sorted(f"{database}.{table}" for database, table in {unsure.table for unsure in outcome.unsure})
        if found != sorted(wanted):
            failures.append(f"{text}\n  unsure about {[(u.table, u.why) for u in outcome.unsure]}, expected {wanted}")
        failures += [f"{text}\n  {difference}" for difference in outcome.differences]
    compared, wrong = row_differences(tracked)
    assert compared, "no table took a row"
    return logged, ran, failures + wrong


@pytest.mark.parametrize("theme", CORPUS, ids=lambda theme: theme.stem)
def test_tracked_definitions_when_a_corpus_runs_then_equal_information_schema(both: dict[Flavor, Tracking], theme):
    ran: set[int] = set()
    failures: list[str] = []
    for flavor, tracked in both.items():
        logged, accepted, wrong = follow(tracked, theme, flavor)
        print(f"{theme.stem} on {flavor}: {len(accepted)} statements ran, {logged} were logged")  # noqa: T201
        ran |= accepted
        failures += [f"{flavor}: {failure}" for failure in wrong]
    refused = [text for number, (text, _) in enumerate(statements(theme.read_text())) if number not in ran]
    assert not failures, "\n".join(failures)
    assert not refused, f"no server takes {refused}"
