"""`menura agent check`: what the servers of all sources are asked before anything is read, and what was found.

Comes in: the agent, made of its configuration. Goes out: a line for each source and for each finding, of an installed
package one about upgrades, or all of it as one document. Nothing is sent to a gateway. The exit code is that of what
stands still first: a source, a table.
"""

import os
from pathlib import Path

from menura import output
from menura.errors import MenuraError

from agent.errors import TableError
from agent.pipeline import Agent
from agent.running_source import Checked
from agent.runtime.upgrade_files import UpgradePlaces

HELP = "check every source and print one line each"


def run(agent: Agent, form: str) -> int:
    """Print it; the exit code."""
    checked = agent.check()
    stopped = [result.error for result in checked if result.error is not None]
    stopped += [finding for result in checked for finding in result.findings if isinstance(finding, TableError)]
    exit_code = stopped[0].exit_code if stopped else 0
    places = UpgradePlaces.of(Path(), os.environ)
    upgrades = places.described() if places.packaged_as() else ""
    if form == output.TABLE:
        for result in checked:
            print(f"{result.source}: {result.error or 'ok, ' + '; '.join(result.found)}")
            for finding in result.findings:
                print(f"{result.source}: warning: {finding}")
        if upgrades:
            print(f"upgrades: {upgrades}")
    else:
        found = {"exit_code": exit_code, "sources": [_source(result) for result in checked]}
        print(output.document(found | ({"upgrades": upgrades} if upgrades else {}), form))
    return exit_code


def _source(result: Checked) -> dict[str, object]:
    error = None if result.error is None else said(result.error)
    findings = [said(finding) for finding in result.findings]
    return {"source": result.source, "found": result.found, "error": error, "warnings": findings}


def said(error: MenuraError) -> dict[str, object]:
    """What it says, by parts; empty ones are left out."""
    parts = ("doing", "found", "data", "remedy", "source", "database", "table", "position")
    named = {part: getattr(error, part) for part in parts if getattr(error, part)}
    return {"code": error.code, "exit_code": error.exit_code, **named}
