"""`menura verify run | report | repair | schedule | coverage`: compare tables with the lake, and mend what differs."""

from collections.abc import Sequence
from typing import Annotated

import typer
from menura.bounds import clean_text
from rich.text import Text

from controlplane_api.api.views import Proofs, ProofView, RepairView, VerdictView
from controlplane_api.commands.access import connect
from controlplane_api.commands.dump import BytesPerSecond, Priority, RowsPerSecond, Workers
from controlplane_api.commands.grid import Grid
from controlplane_api.commands.options import (
    DEFAULT_API,
    DEFAULT_TENANT,
    UNKNOWN,
    Api,
    AsJson,
    Tenant,
    count,
    duration,
    forced_group,
    plain,
    put,
    seconds_of,
)
from controlplane_api.commands.output import document
from controlplane_api.commands.tables import TableArgument, TablesArgument, named_tables, parse_table, show_outcomes
from controlplane_api.commands.verify_schedule import coverage, schedule
from controlplane_api.errors import LakeDiffers, LakeUnproven
from controlplane_api.key_ranges import range_text
from controlplane_api.states import Proof

STYLES = {Proof.EQUAL: "green", Proof.DIFFERS: "bold red", Proof.UNKNOWN: "yellow", Proof.NEVER: "dim"}
#: of a position in a table
_POSITION_CHARS = 36
#: of tables that an error names
_NAMED = 3
MOST_SECONDS = 10 * 366 * 86_400

app = forced_group("Whether the lake is equal to its sources, without sending their rows.")
app.command()(schedule)
app.command()(coverage)


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


@app.command()
def repair(
    source: str,
    table: TableArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be read again, and do nothing.")] = False,
    priority: Priority = 0,
    workers: Workers = 0,
    rows_per_second: RowsPerSecond = 0,
    bytes_per_second: BytesPerSecond = 0,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Read the ranges again in which a table differs, beside its stream, and compare them; `menura dump` steers it."""
    name = parse_table(table)
    limits = {"workers": workers, "rows_per_second": rows_per_second, "bytes_per_second": bytes_per_second}
    with connect(api, tenant) as client:
        found = client.start_repair(source, name, {"priority": priority, "limits": limits}, dry_run=dry_run)
    if as_json:
        typer.echo(document(found))
        return
    grid = Grid("RANGE", "ROWS", right=["ROWS"], name="RANGE")
    for each in found.ranges:
        grid.add_row(
            Text(range_text("/".join(map(str, each.above)), "/".join(map(str, each.up_to)))),
            f"about {count(each.estimated_rows)}",
        )
    put(grid, *(Text(plain(line)) for line in _repair_notes(found, dry_run=dry_run)))


def _repair_notes(found: RepairView, *, dry_run: bool) -> list[str]:
    keys = [f"{leaf.key}{f' in {leaf.columns}' if leaf.columns else ''}" for leaf in found.leaves if leaf.key]
    more = found.leaves_differ - len(keys)
    which = ", ".join(keys) + (f" and {more} more" if keys and more > 0 else "")
    notes = [f"Of the key ({', '.join(found.key)}). In lake {found.lake} differ: {which or 'no keys are named'}."]
    proof = "these ranges are compared" if found.verifies == "ranges" else "the whole table is compared"
    begun = "Nothing was changed." if dry_run else f"Repair {found.repair} has begun."
    return [*notes, f"{begun} Afterwards {proof} again."]


@app.command()
def report(
    source: str,
    tables: TablesArgument = None,
    within: Annotated[
        str, typer.Option("--within", metavar="TIME", help="Proofs that are older count for none: 36h, 7d.")
    ] = "",
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Whether tables in the lake are equal to their source: at which position, and how long ago.

    The exit code is 0 if all are, 31 if one differs, and 32 if none differs and one is not proven.
    """
    most_us = seconds_of(within, MOST_SECONDS, "--within") * 1_000_000 if within else None
    names = [parse_table(word) for word in tables or ()]
    with connect(api, tenant) as client:
        found = [client.proof(source, *name) for name in names] if names else client.proofs(source)
    if as_json:
        typer.echo(document(Proofs(proofs=found)))
    else:
        put(*([_report(found)] if found else [Text("No table is synced.")]))
    _judge(found, most_us)


def _judge(found: Sequence[ProofView], most_us: int | None) -> None:
    """Raises `LakeDiffers` or `LakeUnproven`."""
    differ = [each for each in found if each.state is Proof.DIFFERS]
    lacking = [each for each in found if each not in differ and not _is_proven(each, most_us)]
    doing = "comparing tables with the lake"
    if differ:
        remedy = (
            "Run: menura verify repair SOURCE TABLE --dry-run, which shows the rows; without --dry-run it mends them."
        )
        raise LakeDiffers(doing, f"{_named(differ)} differ from the source", data="Nothing was changed.", remedy=remedy)
    if lacking:
        raise LakeUnproven(
            doing,
            f"{_named(lacking)} are not proven",
            data="Nothing was changed.",
            remedy="Run: menura verify run SOURCE TABLE",
        )


def _is_proven(each: ProofView, most_us: int | None) -> bool:
    proof = each.proof
    return each.state is Proof.EQUAL and proof is not None and (most_us is None or proof.age_us <= most_us)


def _named(found: Sequence[ProofView]) -> str:
    names = [plain(f"{each.database}.{each.table}") for each in found]
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _report(found: Sequence[ProofView]) -> Grid:
    columns = ["TABLE", "PROOF", "PROVEN", "ROWS", "LEAVES", "POSITION", "NOTE"]
    gives_way = ["LEAVES", "POSITION", "ROWS"]
    grid = Grid(*columns, right=["PROVEN", "ROWS"], gives_way=gives_way, below="NOTE", name="TABLE")
    for each in found:
        proof = each.proof
        grid.add_row(
            Text(plain(f"{each.database}.{each.table}"), style="bold"),
            Text(each.state, style=STYLES[each.state]),
            "never" if proof is None else f"{duration(proof.age_us)} ago",
            UNKNOWN if proof is None else count(proof.source_rows),
            UNKNOWN if each.verdict is None else _leaves(each.verdict),
            UNKNOWN if proof is None else Text(plain(_short(proof.position))),
            Text(plain(note(each))),
        )
    return grid


def _leaves(verdict: VerdictView) -> str:
    parts = ("equal", verdict.leaves_equal), ("differ", verdict.leaves_differ), ("unknown", verdict.leaves_unknown)
    return ", ".join(f"{number:,} {word}" for word, number in parts if number) or UNKNOWN


def _short(position: str) -> str:
    clean = clean_text(position, 4_096)
    return clean if len(clean) <= _POSITION_CHARS else f"…{clean[1 - _POSITION_CHARS :]}"


def note(each: ProofView) -> str:
    """What there is to know of a table in a sentence."""
    verdict = each.verdict
    notes = ["a verification runs"] if each.verification else []
    if verdict is not None and verdict.verdict == "equal" and each.state is Proof.EQUAL:
        at = f" at {verdict.position}" if verdict.position else ""
        rests = f": {verdict.reason}" if verdict.reason else ""
        rows = f"{count(verdict.source_rows)} rows{rests}"
        notes.insert(0, f"equal to the source{at}, {duration(verdict.age_us)} ago, {rows}")
    elif verdict is not None:
        notes.insert(0, f"{verdict.verdict} {duration(verdict.age_us)} ago: {verdict.reason}")
        first = verdict.leaves[0] if verdict.leaves else None
        if first is not None:
            more = f" and {verdict.leaves_differ - 1} more" if verdict.leaves_differ > 1 else ""
            rows = f"{count(first.source_rows)} rows at the source, {count(first.lake_rows)} in the lake"
            where = f"key {first.key}" if first.key else f"keys {_range(first.lower, first.upper)}"
            columns = f" in {first.columns}" if first.columns else ""
            notes.append(f"{where}{columns} ({rows}){more}")
    notes += [f"it can't be verified now: {each.unprovable}"] if each.unprovable else []
    return "; ".join(notes)


def _range(lower: str, upper: str) -> str:
    """
    >>> _range("", "7"), _range("7", "9"), _range("", "")
    ('up to 7', 'above 7 up to 9', 'of all rows')
    """
    parts = [f"above {lower}" if lower else "", f"up to {upper}" if upper else ""]
    return " ".join(filter(None, parts)) or "of all rows"
