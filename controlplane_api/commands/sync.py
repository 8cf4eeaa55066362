"""`menura sync start | stop | retry | resync SOURCE TABLE...`: commands about tables, as the API takes them."""

from collections.abc import Sequence
from typing import Annotated, Literal

import typer
from menura.naming import TableName

from controlplane_api.commands.access import connect
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

app = forced_group("Start and stop the sync of tables, and bring back those that have stopped.")

AllOption = Annotated[bool, typer.Option("--all", help="Every table that the agent's policy lets through.")]

Tables = Sequence[TableName] | Literal["lost"] | None
LostOption = Annotated[
    bool, typer.Option("--lost", help="Every table whose desired state is gone with the control plane's database.")
]


@app.command()
def start(
    source: str,
    tables: TablesArgument = None,
    every: AllOption = False,
    lost: LostOption = False,
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
    names: Tables = "lost" if lost and not (tables or every) else named_tables(tables, every=every)
    with connect(api, tenant) as client:
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
    with connect(api, tenant) as client:
        show_outcomes(client.stop(source, names), "stopped", "was not running", as_json=as_json)


@app.command()
def retry(
    source: str,
    tables: TablesArgument = None,
    every: Annotated[bool, typer.Option("--all", help="Every table that has stopped.")] = False,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Try tables again that have stopped: where they stopped, and in lakes at once."""
    names = named_tables(tables, every=every)
    with connect(api, tenant) as client:
        show_outcomes(client.retry(source, names), "is tried again", "not changed", as_json=as_json)


@app.command()
def resync(
    source: str,
    tables: TablesArgument = None,
    every: Annotated[bool, typer.Option("--all", help="Every table that is synced.")] = False,
    force: Force = False,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Begin tables anew with a dump, whatever they do now; one that no source or lake can follow comes back so."""
    names = named_tables(tables, every=every)
    with connect(api, tenant) as client:
        show_outcomes(client.resync(source, names, {"force": force}), "begins anew", "not changed", as_json=as_json)
