"""`menura sources [add | change | remove | show | accept | assign | quarantine SOURCE]`: what the API says of sources,
and the commands to configure one at its agent, to follow another server, to say whose a source is, and to end a
quarantine."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.text import Text

from controlplane_api.api.client import ApiClient
from controlplane_api.api.views import OtherServerView, Sources
from controlplane_api.commands.access import connect
from controlplane_api.commands.fleet_file import read_configuration
from controlplane_api.commands.grid import Grid
from controlplane_api.commands.options import (
    DEFAULT_API,
    DEFAULT_TENANT,
    Api,
    AsJson,
    Tenant,
    count,
    moment,
    plain,
    put,
)
from controlplane_api.commands.output import document
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
        typer.echo(document(Sources(sources=fleet.sources)))
    else:
        show_sources(fleet.sources)


FileOption = Annotated[
    Path, typer.Option("--file", "-f", metavar="FILE", help="YAML: what stands at sources.NAME of an agent's file.")
]


@app.command()
def add(
    source: str,
    file: FileOption,
    agent: Annotated[str, typer.Option("--agent", help="Runs it.")],
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Configure a source at an agent. Secrets are {file: NAME} or {env: NAME} on the agent's host."""
    with connect(api, tenant) as client:
        _configure(client, source, agent, file, "none", as_json=as_json)


@app.command()
def change(
    source: str,
    file: FileOption,
    agent: Annotated[str, typer.Option("--agent", help="Runs it from now on; default: the one that does.")] = "",
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Configure a source anew. An agent that can't run it so keeps the former one, and says why."""
    with connect(api, tenant) as client:
        _configure(client, source, agent or client.configuration(source).agent or "", file, "some", as_json=as_json)


@app.command()
def remove(
    source: str,
    stop_tables: Annotated[bool, typer.Option("--stop-tables", help="Also while tables of it are synced.")] = False,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Let the source's agent stop it. What has landed, and what lakes have, stays."""
    with connect(api, tenant) as client:
        removed = client.remove_configuration(source, stop_tables=stop_tables)
    typer.echo(document(removed) if as_json else f"Source {source} is configured no more.")


@app.command()
def show(source: str, api: Api = DEFAULT_API, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False) -> None:
    """How the source shall be configured, and what its agent runs."""
    with connect(api, tenant) as client:
        found = client.configuration(source)
    if as_json:
        typer.echo(document(found))
        return
    table = Grid("", "DESIRED", "RUNS")
    runs = found.effective_sha256
    table.add_row("generation", str(found.generation), str(found.effective_generation) if runs else "none")
    table.add_row("digest", found.sha256[:12], plain(runs[:12]))
    table.add_row("since", moment(found.changed_at_us), moment(found.told_at_us))
    put(table, Text(f"Agent {found.agent}: {found.state}, {plain(found.reason)}. {plain(found.message)}".rstrip()))
    if found.wanted_tables:
        put(Text(f"{count(found.wanted_tables)} tables begin as soon as the source shows them."))
    for refused in found.refused_tables:
        put(Text(plain(f"{refused.database}.{refused.table}: {refused.problem.message}"), style="red"))
    typer.echo(json.dumps(found.desired, indent=2, ensure_ascii=False))


def _configure(
    client: ApiClient, source: str, agent: str, file: Path, before: Literal["none", "some"], *, as_json: bool
) -> None:
    done = client.configure(source, agent, read_configuration(file), before)
    if as_json:
        typer.echo(document(done))
        return
    what = f"Source {source} of agent {agent}: generation {done.generation}" if done.changed else "Nothing was changed"
    typer.echo(f"{what}. What becomes of it: menura sources show {source}")


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
        typer.echo(document(other if accepted is None else accepted))
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
    typer.echo(document(assigned) if as_json else f"Source {source} is agent {agent}'s.")


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
        typer.echo(document(found))
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
