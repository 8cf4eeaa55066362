"""`menura sync start | stop | retry | resync SOURCE TABLE...`: commands about tables, as the API takes them.

`rules` and `progress` show the standing rules of a source, and how far the tables of an operation are.
"""

from typing import Annotated

import typer
from rich.text import Text

from controlplane_api.api.client import ApiClient, Which
from controlplane_api.api.views import OperationDetail
from controlplane_api.commands.access import connect
from controlplane_api.commands.grid import Grid
from controlplane_api.commands.options import (
    DEFAULT_API,
    DEFAULT_TENANT,
    Api,
    AsJson,
    Force,
    Tenant,
    count,
    forced_group,
    moment,
    plain,
    put,
)
from controlplane_api.commands.output import document
from controlplane_api.commands.tables import DryRun, MatchOption, TablesArgument, chosen_tables, show_outcomes
from controlplane_api.errors import OperationUnknown

app = forced_group("Start and stop the sync of tables, and bring back those that have stopped.")

AllOption = Annotated[bool, typer.Option("--all", help="Every table that the agent's policy lets through.")]

LostOption = Annotated[
    bool, typer.Option("--lost", help="Every table whose desired state is gone with the control plane's database.")
]


@app.command()
def start(
    source: str,
    tables: TablesArgument = None,
    every: AllOption = False,
    match: MatchOption = "",
    future: Annotated[bool, typer.Option("--future", help="With --match: also tables that come later.")] = False,
    lost: LostOption = False,
    begin: Annotated[
        str,
        typer.Option("--from", help="dump, oldest, now, or a position; default: where it stopped, else oldest."),
    ] = "resume",
    force: Force = False,
    dry_run: DryRun = False,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Start tables; one that runs already goes on."""
    some = tables or every or match
    names: Which = "lost" if lost and not some else chosen_tables(tables, every=every, match=match, future=future)
    with connect(api, tenant) as client:
        where = begin if begin in ("dump", "oldest", "now", "resume") else {"position": begin}
        outcomes = client.start(source, names, where, {"force": force}, dry_run=dry_run)
        show_outcomes(outcomes, "started", "runs already", as_json=as_json, dry_run=dry_run)


@app.command()
def stop(
    source: str,
    tables: TablesArgument = None,
    every: AllOption = False,
    match: MatchOption = "",
    dry_run: DryRun = False,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Stop tables; each keeps the position where it stopped."""
    names = chosen_tables(tables, every=every, match=match)
    with connect(api, tenant) as client:
        outcomes = client.stop(source, names, dry_run=dry_run)
        show_outcomes(outcomes, "stopped", "was not running", as_json=as_json, dry_run=dry_run)


@app.command()
def retry(
    source: str,
    tables: TablesArgument = None,
    every: Annotated[bool, typer.Option("--all", help="Every table that has stopped.")] = False,
    match: MatchOption = "",
    dry_run: DryRun = False,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Try tables again that have stopped: where they stopped, and in lakes at once."""
    names = chosen_tables(tables, every=every, match=match)
    with connect(api, tenant) as client:
        outcomes = client.retry(source, names, dry_run=dry_run)
        show_outcomes(outcomes, "is tried again", "not changed", as_json=as_json, dry_run=dry_run)


@app.command()
def resync(
    source: str,
    tables: TablesArgument = None,
    every: Annotated[bool, typer.Option("--all", help="Every table that is synced.")] = False,
    match: MatchOption = "",
    force: Force = False,
    dry_run: DryRun = False,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Begin tables anew with a dump, whatever they do now; one that no source or lake can follow comes back so."""
    names = chosen_tables(tables, every=every, match=match)
    with connect(api, tenant) as client:
        outcomes = client.resync(source, names, {"force": force}, dry_run=dry_run)
        show_outcomes(outcomes, "begins anew", "not changed", as_json=as_json, dry_run=dry_run)


@app.command()
def rules(
    source: str,
    remove: Annotated[str, typer.Option("--remove", metavar="RULE", help="End this one; its tables go on.")] = "",
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Standing rules, by which tables that come later are started: see start --match --future."""
    with connect(api, tenant) as client:
        found = client.remove_rule(source, remove) if remove else client.rules(source)
    if as_json:
        typer.echo(document(found))
        return
    table = Grid("RULE", "TABLES", "FROM", "SINCE")
    for rule in found.rules:
        names = Text(plain(f"{rule.database}.{rule.table}"), style="bold")
        table.add_row(Text(rule.rule), names, Text(rule.start), moment(rule.created_at_us))
    put(table)


@app.command()
def progress(
    source: str,
    operation: Annotated[str, typer.Argument(help="Its name, or a beginning of it; without: the newest one.")] = "",
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """How far each table of an operation is, that is of a command about several tables."""
    with connect(api, tenant) as client:
        detail = _operation(client, source, operation)
    if as_json:
        typer.echo(document(detail))
        return
    counts = ", ".join(f"{count(number)} {word}" for word, number in sorted(detail.tables.items()))
    table = Grid("TABLE", "PROGRESS", "REFUSED")
    for each in detail.of_tables:
        name = Text(plain(f"{each.database}.{each.table}"), style="bold")
        table.add_row(name, Text(each.progress), Text(each.refused, style="red"))
    put(Text(f"{detail.kind} {detail.operation} of {moment(detail.at_us)}: {counts or 'no table'}"), table)


def _operation(client: ApiClient, source: str, beginning: str) -> OperationDetail:
    known = [each.operation for each in client.operations(source).operations]
    found = [name for name in known if name.startswith(beginning)][: None if beginning else 1]
    if len(found) != 1:
        raise OperationUnknown(
            "looking for an operation",
            f"{len(found) or 'no'} operations of the source have a name that begins so",
            remedy="Give more of its name, or none for the newest one.",
            source=source,
        )
    return client.operation(source, found[0])
