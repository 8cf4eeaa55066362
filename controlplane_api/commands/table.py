"""`menura table show|changes SOURCE TABLE`: one table: columns, keys, sync, how its definition and its rows changed."""

from collections.abc import Sequence

import typer
from rich.console import RenderableType
from rich.text import Text

from controlplane_api.api.views import (
    DefinitionColumnView,
    Definitions,
    DefinitionView,
    KeyView,
    TableDetail,
    TableShown,
)
from controlplane_api.commands.access import connect
from controlplane_api.commands.grid import Grid
from controlplane_api.commands.options import (
    DEFAULT_API,
    DEFAULT_TENANT,
    UNKNOWN,
    Api,
    AsJson,
    Tenant,
    count,
    forced_group,
    moment,
    plain,
    put,
)
from controlplane_api.commands.output import document
from controlplane_api.commands.show import STATE_STYLES
from controlplane_api.commands.table_changes import changes
from controlplane_api.commands.tables import TableArgument, parse_table

app = forced_group("One table of a source.")
app.command()(changes)

#: of a list of changed columns in one line
_NAMED = 6
_POSITION_CHARS = 48


@app.command()
def show(
    source: str,
    table: TableArgument,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Columns, keys, how far its sync is, and how its definition has changed; the last change first."""
    name = parse_table(table)
    with connect(api, tenant) as client:
        detail, history = client.table(source, *name), client.definitions(source, *name)
    if as_json:
        typer.echo(document(TableShown(table=detail, history=history)))
        return
    put(*_sync_lines(detail), _columns(detail), _keys(detail.keys), *_foreign_keys(detail), *_history(history))


def _sync_lines(detail: TableDetail) -> list[Text]:
    lake = UNKNOWN if detail.lake is None else str(detail.lake.state)
    if detail.lake is not None and detail.lake.schema_changes:
        lake += f"; {plain(detail.lake.schema_changes)}"
    landed = f"{count(detail.rows)} changes"
    facts = {
        "table": Text(plain(f"{detail.database}.{detail.table}"), style="bold"),
        "state": Text(detail.state, style=STATE_STYLES.get(detail.state, "")),
        "reason": Text(f"{detail.reason}: {plain(detail.meaning)} {plain(detail.remedy)}"),
        "position": Text(plain(detail.position) or UNKNOWN),
        "landed": Text(
            landed if detail.landed_at_us is None else f"{landed}, the last at {moment(detail.landed_at_us)}"
        ),
        "lake": Text(lake),
    }
    lines = [Text(f"{name:<9}").append_text(words) for name, words in facts.items()]
    if detail.problem is not None:
        lines.append(Text(plain(detail.problem.message), style="red"))
    return lines


def _columns(detail: TableDetail) -> Grid:
    table = Grid("COLUMN", "TYPE", "NULL", "NOTE", folds=["TYPE"])
    for column in detail.columns:
        notes = [word for word, holds in (("generated", column.generated), ("ignored", column.ignored)) if holds]
        null = "yes" if column.nullable else "no"
        table.add_row(
            Text(plain(column.name), style="bold"), Text(plain(column.column_type)), null, Text(", ".join(notes))
        )
    return table


def _keys(keys: Sequence[KeyView]) -> Grid:
    table = Grid("KEY", "UNIQUE", "COLUMNS", folds=["COLUMNS"])
    for key in keys:
        name = Text(plain(key.name), style="bold")
        table.add_row(name, "yes" if key.unique else "no", Text(plain(", ".join(key.columns))))
    return table


def _foreign_keys(detail: TableDetail) -> list[RenderableType]:
    if not detail.foreign_keys:
        return []
    table = Grid("FOREIGN KEY", "COLUMNS", "PARENT", "ITS COLUMNS")
    for key in detail.foreign_keys:
        cells = (", ".join(key.columns), ".".join(key.parent), ", ".join(key.parent_columns))
        table.add_row(Text(plain(key.name), style="bold"), *(Text(plain(cell)) for cell in cells))
    more = f"{count(detail.more_foreign_keys)} more foreign keys are not shown."
    return [table, Text(more)] if detail.more_foreign_keys else [table]


def _history(history: Definitions) -> list[RenderableType]:
    table = Grid("VERSION", "SINCE", "TOLD BY", "CHANGE", "POSITION", right=["VERSION"], folds=["CHANGE"])
    for one in history.definitions:
        former = next((each for each in _older(history, one) if each.teller == one.teller), None)
        table.add_row(
            str(one.number),
            UNKNOWN if one.at_us is None else moment(one.at_us),
            one.teller,
            Text(plain(change(former, one))),
            Text(plain(one.position[-_POSITION_CHARS:])),
        )
    dropped = [Text(f"{count(history.dropped)} older versions are not kept any more.")] if history.dropped else []
    return [table, *dropped]


def _older(history: Definitions, one: DefinitionView) -> Sequence[DefinitionView]:
    return [each for each in history.definitions if each.number < one.number]


def change(former: DefinitionView | None, now: DefinitionView) -> str:
    """What became other between two versions of one teller, in words.

    >>> none = DefinitionView(number=1, teller="log", at_us=0, gsn=0, position="", columns=[], keys=[])
    >>> column = DefinitionColumnView(name="note", column_type="text")
    >>> change(none, none.model_copy(update={"columns": [column]})), change(None, none)
    ('+ note text', '0 columns')
    """
    if former is None:
        return f"{len(now.columns)} columns"
    before, after = ({one.name: one for one in each.columns} for each in (former, now))
    words = [f"+ {one.name} {one.column_type}" for name, one in after.items() if name not in before]
    words += [f"- {name}" for name in before if name not in after]
    words += [_altered(before[name], one) for name, one in after.items() if name in before and before[name] != one]
    if former.keys != now.keys:
        words.append("keys")
    more = len(words) - _NAMED
    return ", ".join(words[:_NAMED] or ["the order of columns"]) + (f" and {more} more" if more > 0 else "")


def _altered(before: DefinitionColumnView, after: DefinitionColumnView) -> str:
    if before.column_type != after.column_type:
        return f"{after.name} {before.column_type} -> {after.column_type}"
    return f"{after.name} altered"
