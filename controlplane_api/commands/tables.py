"""Commands about several tables: how their names are given, and what became of each."""

from typing import Annotated

import typer
from menura.naming import TableName
from rich.console import Console
from rich.text import Text

from controlplane_api.api.client import Which
from controlplane_api.api.views import Outcomes
from controlplane_api.commands.options import plain
from controlplane_api.commands.output import document
from controlplane_api.errors import ApiFailed, RequestInvalid

TABLE_HELP = "DATABASE.TABLE; `a.b`.`c` where a name has a dot."
TableArgument = Annotated[str, typer.Argument(help=TABLE_HELP)]
TablesArgument = Annotated[list[str] | None, typer.Argument(metavar="TABLE...", help=TABLE_HELP)]

MatchOption = Annotated[
    str, typer.Option("--match", metavar="DATABASE.TABLE", help="Globs of both names, e.g. 'shop.*' or '*.order_?'.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")]


def parse_table(word: str) -> TableName:
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
            remedy="Write both names, as in shop.orders, a name with a dot or a backtick in backticks."
            " To see them, run: menura tables SOURCE",
        )
    return database, table


def _name(text: str) -> TableName:
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


def named_tables(tables: list[str] | None, *, every: bool) -> list[TableName] | None:
    if every == bool(tables):
        raise RequestInvalid("reading the command", "it takes either tables or --all", data="Nothing was changed.")
    return None if every else [parse_table(word) for word in tables or []]


def chosen_tables(tables: list[str] | None, *, every: bool, match: str, future: bool = False) -> Which:
    """Of a command that takes tables, --all, or --match with globs for both names."""
    if not match:
        if future:
            raise RequestInvalid("reading the command", "--future needs --match", data="Nothing was changed.")
        return named_tables(tables, every=every)
    if tables or every:
        raise RequestInvalid("reading the command", "it takes tables, --all, or --match", data="Nothing was changed.")
    database, table = parse_table(match)
    return {"database": database, "table": table, **({"future": True} if future else {})}


def show_outcomes(outcomes: Outcomes, done: str, unchanged: str, *, as_json: bool, dry_run: bool = False) -> None:
    if dry_run:
        done = f"would be changed: {done}"
    refused = [outcome.refused.code for outcome in outcomes.tables if outcome.refused is not None]
    if as_json:
        typer.echo(document(outcomes))
    else:
        console = Console(soft_wrap=True)
        for outcome in outcomes.tables:
            name = plain(f"{outcome.database}.{outcome.table}")
            if outcome.refused is None:
                word = done if outcome.changed else unchanged
                dump = f" Dump {outcome.dump}." if outcome.dump else ""
                console.print(Text(f"{name}: {word}.{dump} {outcome.notice}".rstrip()))
            else:
                typer.echo(f"{name}: {outcome.refused.found}. {outcome.refused.remedy}", err=True)
    if refused:
        raise ApiFailed(
            "asking for tables",
            f"{len(refused)} of {len(outcomes.tables)} were refused: {', '.join(sorted(set(refused)))}",
        )
