"""`menura sync start | stop SOURCE TABLE...`: commands about tables, as the API takes them."""

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from controlplane_api.client import ApiClient
from controlplane_api.commands.options import (
    DEFAULT_API,
    DEFAULT_TENANT,
    Api,
    AsJson,
    Tenant,
    forced_group,
    plain,
)
from controlplane_api.errors import ApiFailed, RequestInvalid
from controlplane_api.views import Outcomes

app = forced_group("Start and stop the sync of tables.")

TablesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="TABLE...", help="DATABASE.TABLE; `a.b`.`c` where a name has a dot.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Every table that the agent's policy lets through.")]


@app.command()
def start(
    source: str,
    tables: TablesArgument = None,
    every: AllOption = False,
    begin: Annotated[
        str, typer.Option("--from", help="oldest, now, or a position; default: where it stopped, else oldest.")
    ] = "resume",
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Start tables; one that runs already goes on."""
    names = _names(tables, every=every)
    with ApiClient(api, tenant) as client:
        where = begin if begin in ("oldest", "now", "resume") else {"position": begin}
        _show(client.start(source, names, where), "started", "runs already", as_json=as_json)


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
    names = _names(tables, every=every)
    with ApiClient(api, tenant) as client:
        _show(client.stop(source, names), "stopped", "was not running", as_json=as_json)


def parse_table(word: str) -> tuple[str, str]:
    """DATABASE.TABLE, each bare or in backticks (doubled inside).

    >>> parse_table("shop.orders"), parse_table("`a.b`.`c``d`")
    (('shop', 'orders'), ('a.b', 'c`d'))
    """
    database, rest = _name(word)
    table, end = _name(rest[1:]) if rest.startswith(".") else ("", "")
    if not database or not table or end:
        raise RequestInvalid(
            "reading a table's name",
            f"{plain(word)!r} is not DATABASE.TABLE",
            data="Nothing was changed.",
            remedy="Put names with a dot or a backtick into backticks.",
        )
    return database, table


def _name(text: str) -> tuple[str, str]:
    """The name that `text` begins with, and what follows it."""
    if not text.startswith("`"):
        name, dot, rest = text.partition(".")
        return name, dot + rest
    at, name = 1, ""
    while (end := text.find("`", at)) >= 0:
        name += text[at:end]
        if not text.startswith("``", end):
            return name, text[end + 1 :]
        name += "`"
        at = end + 2
    return "", text


def _names(tables: list[str] | None, *, every: bool) -> list[tuple[str, str]] | None:
    if every == bool(tables):
        raise RequestInvalid("reading the command", "it takes either tables or --all", data="Nothing was changed.")
    return None if every else [parse_table(word) for word in tables or []]


def _show(outcomes: Outcomes, done: str, unchanged: str, *, as_json: bool) -> None:
    refused = [outcome.refused.code for outcome in outcomes.tables if outcome.refused is not None]
    if as_json:
        typer.echo(outcomes.model_dump_json(indent=2))
    else:
        console = Console(soft_wrap=True)
        for outcome in outcomes.tables:
            name = plain(f"{outcome.database}.{outcome.table}")
            if outcome.refused is None:
                word = done if outcome.changed else unchanged
                console.print(Text(f"{name}: {word}. {outcome.notice}".rstrip()))
            else:
                typer.echo(f"{name}: {outcome.refused.found}. {outcome.refused.remedy}", err=True)
    if refused:
        raise ApiFailed(
            "asking for tables",
            f"{len(refused)} of {len(outcomes.tables)} were refused: {', '.join(sorted(set(refused)))}",
        )
