"""`menura api-token create | list | revoke`: what people and scripts show the API."""

from typing import Annotated

import typer
from menura.instants import now_us
from rich.text import Text

from controlplane_api.api.views import MAX_API_TOKEN_SECONDS, ApiTokens, ApiTokenView
from controlplane_api.commands.access import connect
from controlplane_api.commands.grid import Grid
from controlplane_api.commands.options import (
    DEFAULT_API,
    DEFAULT_TENANT,
    Api,
    AsJson,
    Fleet,
    Tenant,
    forced_group,
    moment,
    plain,
    put,
    seconds_of,
)
from controlplane_api.commands.output import document
from controlplane_api.identity.callers import Role

app = forced_group("What people and scripts show the API: each token has a role in a tenant, or in the whole fleet.")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What you know it by: a-z, 0-9, '-' and '_'.")],
    role: Annotated[Role, typer.Option("--role", help="fleet-viewer and sink are of the fleet alone.")],
    ttl: Annotated[str, typer.Option("--ttl", help="How long it is good: 12h, 90d.")] = "90d",
    fleet: Fleet = False,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it; nobody can show it again."""
    with connect(api, tenant) as client:
        made = client.create_api_token(name, role, seconds_of(ttl, MAX_API_TOKEN_SECONDS), fleet=fleet)
    if as_json:
        typer.echo(document(made))
        return
    typer.echo(made.token)
    where = "the whole fleet" if fleet else f"tenant {tenant}"
    typer.echo(f"{role} of {where}, until {moment(made.expires_at_us)}. Keep it in a file of mode 0600:", err=True)
    typer.echo("  export MENURA_API_TOKEN_FILE=FILE", err=True)


@app.command("list")
def list_(
    fleet: Fleet = False, api: Api = DEFAULT_API, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False
) -> None:
    """The tokens of the tenant, or of the whole fleet, the newest first, without their secrets."""
    with connect(api, tenant) as client:
        _put(client.api_tokens(fleet=fleet), as_json=as_json)


@app.command()
def revoke(
    token: str,
    fleet: Fleet = False,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """End a token, by its name in the list, and the sessions that it has opened."""
    with connect(api, tenant) as client:
        _put(ApiTokens(api_tokens=[client.revoke_api_token(token, fleet=fleet)]), as_json=as_json)


def _put(found: ApiTokens, *, as_json: bool) -> None:
    if as_json:
        typer.echo(document(found))
        return
    table = Grid("TOKEN", "NAME", "ROLE", "STATE", "CREATED", "EXPIRES", "BY", gives_way=["BY"])
    for token in found.api_tokens:
        table.add_row(
            Text(token.id, style="bold"),
            Text(token.name),
            Text(token.role),
            Text(_state(token)),
            moment(token.created_at_us),
            moment(token.expires_at_us),
            Text(plain(token.created_by)),
        )
    put(table)


def _state(token: ApiTokenView) -> str:
    if token.revoked_at_us is not None:
        return "revoked"
    return "expired" if token.expires_at_us is not None and token.expires_at_us <= now_us() else "good"
