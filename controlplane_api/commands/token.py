"""`menura token create | list | revoke`: what enrols agents."""

from typing import Annotated

import typer
from menura.instants import now_us
from rich.text import Text

from controlplane_api.api.views import MAX_TOKEN_SECONDS, Tokens, TokenView
from controlplane_api.commands.access import connect
from controlplane_api.commands.grid import Grid
from controlplane_api.commands.options import (
    DEFAULT_API,
    DEFAULT_TENANT,
    Api,
    AsJson,
    Tenant,
    forced_group,
    moment,
    put,
    seconds_of,
)
from controlplane_api.commands.output import document

app = forced_group("What enrols agents: each token one of them, once.")


@app.command()
def create(
    ttl: Annotated[str, typer.Option("--ttl", help="How long it is good: 30m, 1h, 2d.")] = "1h",
    agent: Annotated[str, typer.Option("--agent", help="Enrols this agent alone, and may give it another key.")] = "",
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it; nobody can show it again. Without --agent it enrols one that is new."""
    with connect(api, tenant) as client:
        made = client.create_token(agent, seconds_of(ttl, MAX_TOKEN_SECONDS))
    if as_json:
        typer.echo(document(made))
        return
    typer.echo(made.token)
    whom = f"agent {agent}" if agent else "one new agent"
    typer.echo(f"For {whom} of tenant {tenant}, once, until {moment(made.expires_at_us)}. On its host:", err=True)
    typer.echo("  menura agent enrol --config agent.yaml --gateway HOST:PORT --token TOKEN", err=True)


@app.command("list")
def list_(api: Api = DEFAULT_API, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False) -> None:
    """The tenant's tokens, the newest first, without their secrets."""
    with connect(api, tenant) as client:
        _put(client.tokens(), as_json=as_json)


@app.command()
def revoke(token: str, api: Api = DEFAULT_API, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False) -> None:
    """End a token, by its name in the list."""
    with connect(api, tenant) as client:
        _put(Tokens(tokens=[client.revoke_token(token)]), as_json=as_json)


def _put(found: Tokens, *, as_json: bool) -> None:
    if as_json:
        typer.echo(document(found))
        return
    table = Grid("TOKEN", "STATE", "FOR", "CREATED", "EXPIRES")
    for token in found.tokens:
        whom = token.used_by or token.agent or "any new agent"
        table.add_row(
            Text(token.id, style="bold"),
            Text(_state(token)),
            Text(whom),
            moment(token.created_at_us),
            moment(token.expires_at_us),
        )
    put(table)


def _state(token: TokenView) -> str:
    if token.used_at_us is not None:
        return "used"
    if token.revoked_at_us is not None:
        return "revoked"
    return "expired" if token.expires_at_us <= now_us() else "good"
