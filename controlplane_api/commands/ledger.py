"""`menura ledger SOURCE TABLE`: what became of a table's continuity, and whether the ledger is as it was written."""

from collections.abc import Sequence
from typing import Annotated

import typer
from menura.naming import command_table
from rich.text import Text

from controlplane_api.api.views import LedgerChecked, LedgerEntryView, LedgerShown
from controlplane_api.commands.access import connect
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
    single_command,
)
from controlplane_api.commands.output import document
from controlplane_api.commands.tables import TableArgument, parse_table
from controlplane_api.errors import LedgerBroken, RequestInvalid
from controlplane_api.states import LedgerKind

app = single_command()

#: that need somebody's eyes
_LOUD = (LedgerKind.GAP, LedgerKind.STOPPED, LedgerKind.ROWS_UNLOGGED, LedgerKind.HISTORY_LOST)
#: of a position: its end differs
_POSITION_CHARS = 48


@app.command()
def ledger(
    source: str,
    table: TableArgument,
    verify: Annotated[
        bool, typer.Option("--verify", help="Recompute every hash; ends with 44 if one differs.")
    ] = False,
    head: Annotated[str, typer.Option("--head", metavar="HASH", help="With --verify: as noted earlier.")] = "",
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """What became of a table's continuity: starts, stops, gaps, dumps, and who ordered what; the newest first."""
    if head and not verify:
        raise RequestInvalid("reading --head", "it goes with --verify", remedy="Add --verify.")
    name = parse_table(table)
    with connect(api, tenant) as client:
        entries = client.ledger(source, *name)
        checked = client.check_ledger(source, *name, head) if verify or as_json else None
    if as_json and checked is not None:
        typer.echo(document(LedgerShown(entries=entries, checked=checked)))
    else:
        put(_entries(entries))
    if checked is not None and verify:
        _tell(checked, f"{source} {command_table(*name)}", head, quiet=as_json)


def _entries(entries: Sequence[LedgerEntryView]) -> Grid:
    table = Grid("NUMBER", "AT", "WHAT", "POSITION", "DETAIL", right=["NUMBER"], folds=["DETAIL"])
    for entry in entries:
        who = f"{entry.detail}, by {entry.actor}" if entry.actor else entry.detail
        dump = f"dump {entry.dump}" if entry.dump else ""
        between = f"from {entry.from_position[-_POSITION_CHARS:]}" if entry.from_position else ""
        table.add_row(
            str(entry.number),
            moment(entry.at_us),
            Text(plain(entry.kind), style="red" if entry.kind in _LOUD else ""),
            Text(plain(entry.to_position[-_POSITION_CHARS:])),
            Text(plain("; ".join(filter(None, (between, dump, who))))),
        )
    return table


def _tell(checked: LedgerChecked, table: str, head: str, *, quiet: bool) -> None:
    """Raises `LedgerBroken`."""
    doing = f"verifying the ledger of {table}"
    remedy = "Compare it with a backup of the database, and with menura audit"
    if checked.broken_at is not None:
        raise LedgerBroken(
            doing,
            f"entry {checked.broken_at} is missing or is not as it was written",
            data=f"The {count(checked.entries)} entries before it are as they were written",
            remedy=remedy,
        )
    if head and checked.has_head_at is None:
        raise LedgerBroken(
            doing, f"no entry has the hash {plain(head)}", data="The entries fit each other", remedy=remedy
        )
    if not quiet:
        after = f", {count(checked.entries - checked.has_head_at)} since that hash" if checked.has_head_at else ""
        put(Text(f"{count(checked.entries)} entries are as they were written{after}. Head: {checked.head}"))
