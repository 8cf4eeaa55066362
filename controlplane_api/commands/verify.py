"""`menura verify run`: compare tables with the lake."""

from typing import Annotated

import typer

from controlplane_api.commands.access import connect
from controlplane_api.commands.dump import BytesPerSecond, Priority, RowsPerSecond, Workers
from controlplane_api.commands.options import DEFAULT_API, DEFAULT_TENANT, Api, AsJson, Tenant, forced_group
from controlplane_api.commands.tables import TablesArgument, named_tables, show_outcomes

app = forced_group("Whether the lake is equal to its sources, without sending their rows.")


@app.command()
def run(
    source: str,
    tables: TablesArgument = None,
    every: Annotated[bool, typer.Option("--all", help="Every table that is synced.")] = False,
    priority: Priority = 0,
    workers: Workers = 0,
    rows_per_second: RowsPerSecond = 0,
    bytes_per_second: BytesPerSecond = 0,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Read tables as a dump does, and compare digests of their rows with the lake's; `menura dump` steers it."""
    names = named_tables(tables, every=every)
    limits = {"workers": workers, "rows_per_second": rows_per_second, "bytes_per_second": bytes_per_second}
    with connect(api, tenant) as client:
        outcomes = client.start_verifications(source, names, {"priority": priority, "limits": limits})
        show_outcomes(outcomes, "verification begun", "not verified", as_json=as_json)
