"""`menura agents [add NAME | revoke NAME]` and `menura audit`: who agents are, what was done and what was refused."""

from typing import Annotated

import typer
from rich.text import Text

from controlplane_api.api.client import ApiClient
from controlplane_api.api.views import Agents, Audit, AuditView
from controlplane_api.commands.access import connect
from controlplane_api.commands.grid import Grid
from controlplane_api.commands.options import (
    DEFAULT_API,
    DEFAULT_TENANT,
    Api,
    AsJson,
    Fleet,
    Tenant,
    count,
    moment,
    plain,
    put,
    single_command,
)
from controlplane_api.commands.output import document
from controlplane_api.commands.show import show_agents
from controlplane_api.states import AuditOutcome

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
audit_app = single_command()


@app.callback(invoke_without_command=True)
def agents(
    context: typer.Context, api: Api = DEFAULT_API, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False
) -> None:
    """The tenant's agents."""
    if context.invoked_subcommand is not None:
        return
    with connect(api, tenant) as client:
        fleet = client.fleet()
    if as_json:
        typer.echo(document(Agents(agents=fleet.agents)))
    else:
        show_agents(fleet.agents)


@app.command()
def add(agent: str, api: Api = DEFAULT_API, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False) -> None:
    """Make known an agent whose certificates your own CA makes. Others come by menura agent enrol."""
    with connect(api, tenant) as client:
        changed = client.add_agent(agent)
    typer.echo(document(changed) if as_json else f"Agent {agent} may come with a certificate.")


@app.command()
def revoke(agent: str, api: Api = DEFAULT_API, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False) -> None:
    """End an agent's streams and refuse it, until a token that names it enrols it again."""
    with connect(api, tenant) as client:
        changed = client.revoke_agent(agent)
    if as_json:
        typer.echo(document(changed))
    else:
        typer.echo(f"Agent {agent} is revoked." if changed.changed else f"Agent {agent} was revoked before.")


@audit_app.command()
def audit(
    text: Annotated[str, typer.Option("--text", help="Part of who, what, the error's code or what was found.")] = "",
    outcome: Annotated[AuditOutcome | None, typer.Option("--outcome", help="Only what ended so.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000, help="So many, the newest ones.")] = 50,
    fleet: Fleet = False,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """What was done, by whom, what was refused and what has failed, the newest first."""
    with connect(api, tenant) as client:
        found = _searched(client, limit, text, "" if outcome is None else outcome.value, fleet=fleet)
    if as_json:
        typer.echo(document(found))
        return
    table = Grid("AT", "WHO", "WHAT", "OUTCOME", "CODE", "FOUND", folds=["FOUND"], gives_way=["CODE", "OUTCOME"])
    for entry in found.entries:
        table.add_row(
            moment(entry.at_us),
            Text(plain(entry.actor)),
            Text(plain(entry.action)),
            Text(entry.outcome, style="" if entry.outcome is AuditOutcome.DONE else "red"),
            Text(plain(entry.refused), style="red"),
            Text(plain(entry.found)),
        )
    searched = [Text(f"{count(found.looked_at)} entries were looked at.", style="dim")] if text or outcome else []
    put(table, *searched)


def _searched(client: ApiClient, limit: int, text: str, outcome: str, *, fleet: bool) -> Audit:
    """Until there are `limit`, or the log is at its end: the API looks at some thousand entries at a time."""
    entries: list[AuditView] = []
    looked_at, cursor = 0, ""
    while True:
        page = client.audit(limit - len(entries), text=text, outcome=outcome, cursor=cursor, fleet=fleet)
        entries += page.entries
        looked_at += page.looked_at
        cursor = page.next_cursor or ""
        if not cursor or len(entries) == limit:
            return Audit(entries=entries, looked_at=looked_at, next_cursor=page.next_cursor)
