"""`menura why [SOURCE] TABLE`: where a table's lag comes from."""

import time
from typing import Annotated

import typer
from menura.instants import now_us
from menura.naming import TableName
from rich.console import Console
from rich.text import Text

from controlplane_api.api.client import ApiClient
from controlplane_api.commands.access import connect
from controlplane_api.commands.grid import Grid
from controlplane_api.commands.lag_causes import Cause, Why, waiting_part, why
from controlplane_api.commands.options import (
    DEFAULT_API,
    DEFAULT_TENANT,
    Api,
    AsJson,
    Tenant,
    duration,
    plain,
    put,
    single_command,
)
from controlplane_api.commands.output import document
from controlplane_api.commands.tables import TABLE_HELP, parse_table
from controlplane_api.errors import RequestInvalid

app = single_command()

#: between two looks at how much the stream waits: longer than agents take from one heartbeat to the next
LOOK_SECONDS = 2.0
#: tables of one name that an error lists
NAMED = 5


@app.command()
def explain(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[SOURCE] TABLE", help=f"{TABLE_HELP} TABLE alone does where one has that name."),
    ],
    seconds: Annotated[
        float, typer.Option("--for", min=0, max=60, metavar="SECONDS", help="How long to look; 0: once.")
    ] = LOOK_SECONDS,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Where a table's lag comes from: each stage from the server's log to the lake, the largest cause first."""
    if len(words) > 2:
        raise RequestInvalid("reading the command", f"it has {len(words)} words", remedy="Give SOURCE and TABLE.")
    with connect(api, tenant) as client:
        source, table = _meant(client, words)
        before = client.source(source)
        with Console(stderr=True).status(f"looking at source {source} for {seconds:g} s"):
            time.sleep(seconds)
        after, row = client.source(source), client.table(source, *table)
    found = why(after, row, waiting_part(before, after), now_us())
    if as_json:
        typer.echo(document(found))
    else:
        put(_summary(found), _grid(found.causes))


def _meant(client: ApiClient, words: list[str]) -> tuple[str, TableName]:
    """Raises `RequestInvalid`."""
    if "." in words[-1] or "`" in words[-1]:
        table = parse_table(words[-1])
        return words[0] if len(words) == 2 else source_of(client, table), table
    sources = words[:1] if len(words) == 2 else [each.source for each in client.fleet().sources]
    found = [
        (source, (each.database, each.table))
        for source in sources
        for each in client.tables(source, text=words[-1])
        if each.table == words[-1]
    ]
    if len(found) != 1:
        names = ", ".join(plain(f"{source} {'.'.join(table)}") for source, table in found[:NAMED])
        has = f"there are {len(found)}: {names}" if found else "no source has a table of this name"
        remedy = (
            "Run: menura why SOURCE DATABASE.TABLE"
            if found
            else "To see those that there are, run: menura tables SOURCE"
        )
        raise RequestInvalid(f"looking for the table {plain(words[-1])}", has, remedy=remedy)
    return found[0]


def source_of(client: ApiClient, table: TableName) -> str:
    """The one source that has the table. Raises `RequestInvalid`."""
    have = [each.source for each in client.fleet().sources if client.find_table(each.source, *table) is not None]
    if len(have) != 1:
        found = f"sources {', '.join(have)} have it" if have else "no source of the tenant has it"
        raise RequestInvalid(f"looking for {plain('.'.join(table))}", found, remedy="Run: menura why SOURCE TABLE")
    return have[0]


def _summary(found: Why) -> Text:
    behind = "none" if found.behind_us == 0 else "not known"
    if found.behind_us:
        behind = duration(found.behind_us) if found.complete else f"at least {duration(found.behind_us)}"
    name = plain(f"{found.database}.{found.table}")
    words = f" of source {found.source} is {found.state.replace('_', ' ')}. Lag: {behind}."
    fresh = f" Its newest change in the lake is {duration(found.freshness_us)} old." if found.freshness_us else ""
    reason = f"\n{found.reason}: {plain(found.meaning)} {plain(found.remedy)}"
    return Text.assemble((name, "bold"), words + fresh, reason)


def _grid(causes: list[Cause]) -> Grid:
    grid = Grid("STAGE", "BEHIND", "WHY", right=["BEHIND"], folds=["WHY"])
    for cause in causes:
        grid.add_row(cause.stage, _behind(cause), Text(plain(cause.why)))
    return grid


def _behind(cause: Cause) -> Text:
    if cause.stands_still:
        return Text("held up", style="bold red")
    if cause.behind_us is None:
        return Text("unknown", style="yellow")
    return Text(duration(cause.behind_us) if cause.behind_us else "0", style="" if cause.behind_us else "green")
