"""`menura sync start | stop SOURCE TABLE...`: commands about tables, as the API takes them."""

from typing import Annotated

import typer

from controlplane_api.api.client import ApiClient
from controlplane_api.commands.options import (
    DEFAULT_API,
    DEFAULT_TENANT,
    Api,
    AsJson,
    Force,
    Tenant,
    forced_group,
)
from controlplane_api.commands.tables import TablesArgument, named_tables, show_outcomes

app = forced_group("Start and stop the sync of tables.")

AllOption = Annotated[bool, typer.Option("--all", help="Every table that the agent's policy lets through.")]


@app.command()
def start(
    source: str,
    tables: TablesArgument = None,
    every: AllOption = False,
    begin: Annotated[
        str,
        typer.Option("--from", help="dump, oldest, now, or a position; default: where it stopped, else oldest."),
    ] = "resume",
    force: Force = False,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Start tables; one that runs already goes on."""
    names = named_tables(tables, every=every)
    with ApiClient(api, tenant) as client:
        where = begin if begin in ("dump", "oldest", "now", "resume") else {"position": begin}
        show_outcomes(client.start(source, names, where, {"force": force}), "started", "runs already", as_json=as_json)


@app.command()
def stop(
    source: str,
    tables: TablesArgument = None,
    every: AllOption = False,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Stop tables; each keeps the position where it stopped."""
    names = named_tables(tables, every=every)
    with ApiClient(api, tenant) as client:
        show_outcomes(client.stop(source, names), "stopped", "was not running", as_json=as_json)
