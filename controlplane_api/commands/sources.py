"""`menura sources [accept SOURCE | assign SOURCE | quarantine SOURCE]`: what the API says of sources, and the commands
to follow another server, to say whose a source is, and to end a quarantine."""

from typing import Annotated

import typer
from rich.text import Text

from controlplane_api.api.views import OtherServerView, Sources
from controlplane_api.commands.access import connect
from controlplane_api.commands.grid import Grid
from controlplane_api.commands.options import DEFAULT_API, DEFAULT_TENANT, Api, AsJson, Tenant, count, plain, put
from controlplane_api.commands.show import show_sources
from controlplane_api.commands.tables import show_outcomes

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

RetryOption = Annotated[bool, typer.Option("--retry", help="Have the gateway apply them again.")]
SkipOption = Annotated[
    bool, typer.Option("--skip", help="Go on behind them; the tables that they name are dumped anew.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Follow the server that is shown.")]


@app.callback(invoke_without_command=True)
def sources(
    context: typer.Context, api: Api = DEFAULT_API, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False
) -> None:
    """The tenant's sources, with their lag and what has landed."""
    if context.invoked_subcommand is not None:
        return
    with connect(api, tenant) as client:
        fleet = client.fleet()
    if as_json:
        typer.echo(Sources(sources=fleet.sources).model_dump_json(indent=2))
    else:
        show_sources(fleet.sources)


@app.command()
def accept(
    source: str,
    yes: YesOption = False,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Show the server that is there in place of the one that was read; with --yes the lake follows it."""
    with connect(api, tenant) as client:
        other = client.other_server(source)
        accepted = client.accept(source, other.identity) if yes else None
    if as_json:
        typer.echo((other if accepted is None else accepted).model_dump_json(indent=2))
        return
    _put(other)
    if accepted is None:
        put(Text(f"Nothing was changed. If this is the right server: menura sources accept {source} --yes"))
    else:
        put(Text("Accepted: the lake follows it." if accepted.changed else "It had been accepted before."))


@app.command()
def assign(
    source: str,
    agent: Annotated[str, typer.Option("--agent", help="Whose it is from now on.")],
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Give a source to an agent that comes with a certificate; it is made where it is new."""
    with connect(api, tenant) as client:
        assigned = client.assign(source, agent)
    typer.echo(assigned.model_dump_json(indent=2) if as_json else f"Source {source} is agent {agent}'s.")


@app.command()
def quarantine(
    source: str,
    again: RetryOption = False,
    skip: SkipOption = False,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Show the committed cuts that the database refuses; --retry and --skip end it."""
    with connect(api, tenant) as client:
        if skip:
            show_outcomes(client.skip_quarantine(source), "begins anew", "not changed", as_json=as_json)
            return
        found = client.retry_quarantine(source) if again else client.quarantine(source)
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
        return
    tables = "very many tables" if found.tables is None else f"{count(found.tables)} tables"
    held = f"Held back: cuts {found.cut} to {found.last_cut}, entries {found.entry} to {found.last_entry}; {tables}."
    words = "The gateway applies them again." if found.retries else ""
    put(*(Text(plain(line)) for line in (found.problem.message, held, words) if line))


def _put(other: OtherServerView) -> None:
    table = Grid("", "READ BEFORE", "THERE NOW", folds=["READ BEFORE", "THERE NOW"])
    former = plain(other.former_server) or "not known any more"
    table.add_row("server", Text(former), Text(plain(other.server)))
    table.add_row("position", Text(plain(other.lake_position)), Text(plain(other.end_position)))
    table.add_row("oldest in its log", "", Text(plain(other.oldest_position)))
    table.add_row("would go on at", "", Text(plain(other.goes_on_at)))
    known = other.lacking_transactions
    lacking = "How many transactions the lake has" if known is None else f"The lake has {count(known)} transactions"
    lacking += f" ({plain(other.lacking)})" if other.lacking else ""
    lacking += " that this server lacks"
    lacking += " is not known" if known is None else ""
    words = [
        f"{lacking}; rows that only they brought would disappear.",
        f"{count(other.tables_to_read_again)} tables would be read again; they stay as they are until that is done.",
    ]
    put(table, *map(Text, words))
