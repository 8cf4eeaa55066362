"""`menura plan -f FILE` and `menura apply -f FILE`: what a file says of a tenant's agents, sources, tables
and joined views."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from controlplane_api.api.views import FleetChange, FleetPlan
from controlplane_api.commands.access import connect
from controlplane_api.commands.fleet_file import read_fleet
from controlplane_api.commands.options import (
    DEFAULT_API,
    DEFAULT_TENANT,
    Api,
    AsJson,
    Tenant,
    count,
    plain,
    put,
    single_command,
    size,
)
from controlplane_api.commands.output import document
from controlplane_api.errors import ApiFailed, RequestInvalid
from controlplane_api.states import Action

plan_app, apply_app = single_command(), single_command()

File = Annotated[Path, typer.Option("--file", "-f", metavar="FILE", help="YAML: see docs/fleet.md.")]
Prune = Annotated[bool, typer.Option("--prune", help="Remove sources, stop tables and drop views that the file lacks.")]

#: sign, and style
_SIGNS = {
    Action.CREATE: ("+", "green"),
    Action.START: ("+", "green"),
    Action.RESUME: ("+", "green"),
    Action.CHANGE: ("~", "yellow"),
    Action.MOVE: ("~", "yellow"),
    Action.REMOVE: ("-", "red"),
    Action.STOP: ("-", "red"),
    Action.KEEP: (" ", "dim"),
}


@plan_app.command()
def plan(
    file: File, prune: Prune = False, api: Api = DEFAULT_API, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False
) -> None:
    """Say what apply would do, and what that costs; nothing is changed."""
    _run(file, api, tenant, prune=prune, apply=False, as_json=as_json)


@apply_app.command()
def apply(
    file: File, prune: Prune = False, api: Api = DEFAULT_API, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False
) -> None:
    """Make the tenant's sources and syncs what the file says: all of it, or nothing. What is so already stays so."""
    _run(file, api, tenant, prune=prune, apply=True, as_json=as_json)


def _run(file: Path, api: str, tenant: str, *, prune: bool, apply: bool, as_json: bool) -> None:
    fleet = read_fleet(file)
    if fleet.tenant and tenant not in (DEFAULT_TENANT, fleet.tenant):
        raise RequestInvalid(
            "reading the command",
            f"{file} is of tenant {fleet.tenant}, and the command of {tenant}",
            data="Nothing was changed.",
            remedy="Leave --tenant and MENURA_TENANT out, or name the file's tenant.",
        )
    with connect(api, fleet.tenant or tenant) as client:
        found = client.plan_fleet(fleet.agents, fleet.views, prune=prune, apply=apply)
    if as_json:
        typer.echo(document(found))
    else:
        _show(found)
    refused = sorted({change.refused.code for change in found.changes if change.refused is not None})
    if refused:
        raise ApiFailed(
            "applying a fleet" if apply else "planning a fleet", f"tables or views were refused: {', '.join(refused)}"
        )


def _show(found: FleetPlan) -> None:
    put(*map(_line, [*found.changes, *found.kept]))
    if not found.changes:
        put(Text(f"Tenant {found.tenant}: nothing to change."))
        return
    put(Text(f"Tenant {found.tenant}: {'done' if found.applied else 'would be done'}: {_summary(found.changes)}."))


def _summary(changes: Sequence[FleetChange]) -> str:
    done = [change for change in changes if change.refused is None]
    counts = [(action, sum(change.action is action for change in done)) for action in Action]
    dumped = [change for change in done if change.estimated_rows is not None or change.estimated_bytes is not None]
    words = [f"{number} {action}" for action, number in counts if number]
    if dumped:
        rows, weight = (sum(getattr(one, f"estimated_{of}") or 0 for one in dumped) for of in ("rows", "bytes"))
        words.append(f"dumps of about {count(rows)} rows, {size(weight)}")
    return ", ".join(words) or "0 changes"


def _line(change: FleetChange) -> Text:
    sign, style = _SIGNS[change.action]
    name = f"view {change.view}" if change.view else f"agent {change.agent}"
    if change.source:
        name = f"source {change.source}"
    if change.table:
        name = f"table {change.source} {change.database}.{change.table}"
    words = [change.detail]
    if change.estimated_rows is not None or change.estimated_bytes is not None:
        words.append(f"about {count(change.estimated_rows)} rows, {size(change.estimated_bytes)}")
    if change.refused is not None:
        words, style = [f"refused: {change.refused.found}. {change.refused.remedy}"], "red"
    return Text(plain(f"{sign} {change.action} {name}: {'; '.join(filter(None, words))}"), style=style)
