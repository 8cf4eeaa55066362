"""`menura verify schedule SOURCE`, `schedule show`, `schedule off`, and `verify coverage`: proofs without commands."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from controlplane_api.api.views import Coverages, CoverageView, VerificationScheduleView
from controlplane_api.commands.access import connect
from controlplane_api.commands.dump import RowsPerSecond
from controlplane_api.commands.grid import Grid
from controlplane_api.commands.options import (
    DEFAULT_API,
    DEFAULT_TENANT,
    Api,
    AsJson,
    Tenant,
    count,
    duration,
    moment,
    plain,
    put,
    seconds_of,
)
from controlplane_api.commands.output import document
from controlplane_api.commands.tables import DryRun, parse_table
from controlplane_api.errors import RequestInvalid
from controlplane_api.states import Coverage

MOST_EVERY_SECONDS = 366 * 86_400
WORDS = "SOURCE | show SOURCE | off SOURCE"
Within = Annotated[
    str,
    typer.Option(
        "--within", metavar="TIME", help="Proofs that are older count for none: 36h, 7d; else the schedule's period."
    ),
]


def schedule(
    words: Annotated[list[str], typer.Argument(metavar=WORDS, help="Set it, show it, or remove it.")],
    every: Annotated[
        str, typer.Option("--every", metavar="TIME", help="Each table once in this time: 36h, 7d.")
    ] = "7d",
    tables: Annotated[
        str, typer.Option("--tables", metavar="DATABASE.TABLE", help="Globs of both names, e.g. 'shop.*'.")
    ] = "*.*",
    rows_per_second: RowsPerSecond = 0,
    window: Annotated[
        str, typer.Option("--window", metavar="22:00-05:00", help="Begin within it; a time zone may follow, else UTC.")
    ] = "",
    dry_run: DryRun = False,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Verify each table of a source once in a period, one after the other, under the limits of the agent's dumps."""
    word, source = _command(words)
    with connect(api, tenant) as client:
        found, tag = client.verification_schedule(source)
        if word == "off":
            found = client.remove_verification_schedule(source, tag=tag, dry_run=dry_run)
        elif word == "set":
            database, table = parse_table(tables)
            seconds = seconds_of(every, MOST_EVERY_SECONDS, "--every")
            wanted = {"every_seconds": seconds, "tables": {"database": database, "table": table}, "window": window}
            wanted["rows_per_second"] = rows_per_second
            found = client.set_verification_schedule(source, wanted, tag=tag, dry_run=dry_run)
    if as_json:
        typer.echo(document(found))
    else:
        put(Text(_told(found)))


def _command(words: Sequence[str]) -> tuple[str, str]:
    """
    >>> _command(["shop"]), _command(["off", "shop"])
    (('set', 'shop'), ('off', 'shop'))
    """
    match words:
        case [source]:
            return "set", source
        case [("show" | "off") as word, source]:
            return word, source
    raise RequestInvalid(
        "reading the command",
        f"{plain(' '.join(words))!r} is not {WORDS}",
        data="Nothing was changed.",
        remedy="Run: menura verify schedule SOURCE --every 7d",
    )


def _told(found: VerificationScheduleView) -> str:
    source, one = plain(found.source), found.schedule
    if one is None:
        return f"{source}: no table is verified by itself. Run: menura verify schedule {source} --every 7d"
    limits = f", at most {count(one.rows_per_second)} rows a second" if one.rows_per_second else ""
    window = f", begun within {one.window}" if one.window else ""
    tables = plain(f"{one.database}.{one.table}")
    every = duration(one.every_seconds * 1_000_000)
    return f"{source}: {tables} every {every}{limits}{window}; the next not before {moment(one.next_at_us)}."


def coverage(
    source: Annotated[str | None, typer.Argument(help="Without it, all of the tenant.")] = None,
    within: Within = "",
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Which share of the tables, and of their estimated rows, a verification has proven within the period."""
    seconds = seconds_of(within, MOST_EVERY_SECONDS, "--within") if within else None
    with connect(api, tenant) as client:
        found = client.coverages(source, seconds)
    if as_json:
        typer.echo(document(Coverages(sources=found)))
    else:
        put(*([_grid(found)] if found else [Text("There is no source.")]))


def _grid(found: Sequence[CoverageView]) -> Grid:
    counts = ["PROVEN", "UNPROVEN", "DIFFERS", "UNPROVABLE", "NEVER"]
    columns = ["SOURCE", "WITHIN", "TABLES", "ROWS", *counts, "OLDEST PROOF"]
    grid = Grid(*columns, right=columns[1:], gives_way=["ROWS", "UNPROVABLE", "UNPROVEN", "NEVER"], name="SOURCE")
    for each in found:
        grid.add_row(
            Text(plain(each.source), style="bold"),
            duration(each.within_seconds * 1_000_000),
            share(each.tables),
            share(each.rows),
            *(count(each.tables[Coverage(name.lower())]) for name in counts),
            duration(each.oldest_proof_age_us),
        )
    return grid


def share(counts: dict[Coverage, int]) -> str:
    """That is proven, rounded down: 100 % is all.

    >>> share({Coverage.PROVEN: 199, Coverage.NEVER: 1}), share({Coverage.PROVEN: 2}), share({})
    ('99.5 %', '100 %', '–')
    """  # noqa: RUF002
    whole = sum(counts.values())
    if not whole:
        return "–"  # noqa: RUF001
    per_mille = 1_000 * counts.get(Coverage.PROVEN, 0) // whole
    return "100 %" if per_mille == 1_000 else f"{per_mille / 10:.1f} %"
