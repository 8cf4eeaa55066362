"""`menura table changes SOURCE TABLE`: the newest changes of a table's rows, with values, as its lake has them."""

from collections.abc import Iterator, Mapping
from typing import Annotated

import typer
from rich.text import Text

from controlplane_api.api.views import RecentChanges, RowChangeView
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
)
from controlplane_api.commands.output import document
from controlplane_api.commands.tables import TableArgument, parse_table

_WORDS = {"c": "inserted", "u": "updated", "d": "deleted", "r": "read by a dump", "t": "all rows removed"}
Row = Mapping[str, object]


def changes(
    source: str,
    table: TableArgument,
    limit: Annotated[int, typer.Option(min=1, max=50, help="How many, the newest first.")] = 20,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """The newest changes of its rows, with the values before and after; for the roles reader and admin."""
    with connect(api, tenant) as client:
        found = client.recent_changes(source, *parse_table(table), limit)
    if as_json:
        typer.echo(document(found))
        return
    put(_grid(found), *_notes(found))


def _grid(found: RecentChanges) -> Grid:
    grid = Grid("COMMITTED", "CHANGE", "KEY", "VALUES", folds=["KEY", "VALUES"])
    for change in found.changes:
        key = ", ".join(f"{name}={_shown(value)}" for name, value in (change.key or {}).items())
        cells = (moment(change.at_us), _WORDS.get(change.op, change.op), key, ", ".join(_values(change)))
        grid.add_row(*(Text(plain(cell)) for cell in cells))
    return grid


def _values(change: RowChangeView) -> Iterator[str]:
    """Of an update the columns that differ, of the rest all but the key's."""
    before, after, key = change.before, change.after, change.key or {}
    for name in after or before or {}:
        was = _shown(before and before[name], absent=name in change.absent_before)
        now = _shown(after and after[name], absent=name in change.absent_after)
        if before is not None and after is not None:
            if was != now:
                yield f"{name}: {was} → {now}"
        elif name not in key:
            yield f"{name}={was if after is None else now}"


def _shown(value: object, *, absent: bool = False) -> str:
    if absent:
        return "(not in the log)"
    return "NULL" if value is None else str(value)


def _notes(found: RecentChanges) -> Iterator[str]:
    if not found.changes:
        yield "No row has changed since the table is in the lake."
    if found.left_out:
        yield f"{count(found.left_out)} older changes are too large to be shown."
    if found.shortened:
        yield f"{count(found.shortened)} values are cut off."
