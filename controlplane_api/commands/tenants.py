"""`menura tenants`: whose agents and sources there are, of those that the caller may see."""

import typer
from rich.text import Text

from controlplane_api.api.views import Tenants
from controlplane_api.commands.access import connect
from controlplane_api.commands.grid import Grid
from controlplane_api.commands.options import (
    DEFAULT_API,
    DEFAULT_TENANT,
    Api,
    AsJson,
    count,
    moment,
    plain,
    put,
    single_command,
)
from controlplane_api.commands.output import document

app = single_command()


@app.command()
def tenants(api: Api = DEFAULT_API, as_json: AsJson = False) -> None:
    """The tenants that are known: since when, and how many agents, sources and synced tables each has."""
    with connect(api, DEFAULT_TENANT) as client:
        found = client.tenants()
    if as_json:
        typer.echo(document(Tenants(tenants=found)))
        return
    numbers = ("AGENTS", "SOURCES", "SYNCED TABLES")
    grid = Grid("TENANT", *numbers, "CREATED", right=numbers)
    for each in found:
        grid.add_row(
            Text(plain(each.tenant), style="bold"),
            count(each.agents),
            count(each.sources),
            count(each.synced_tables),
            moment(each.created_at_us),
        )
    put(grid)
