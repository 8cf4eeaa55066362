"""`menura view create | list | show | explain | drop`: joined views, and how they are in lakes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from menura.views.definition import MOST_SQL_BYTES
from rich.console import RenderableType
from rich.text import Text

from controlplane_api.api.client import ViewText
from controlplane_api.api.views import JoinedViewDetail, JoinedViews, JoinedViewView, ViewInLake, ViewPlan
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
    duration,
    forced_group,
    moment,
    plain,
    put,
)
from controlplane_api.commands.output import document
from controlplane_api.commands.show import STATE_STYLES
from controlplane_api.commands.tables import DryRun
from controlplane_api.errors import RequestInvalid

app = forced_group("Joined views: tables of any sources, joined into one that lakes keep.")

Sql = Annotated[str, typer.Option("--sql", metavar="SELECT", help="Its text.")]
Every = Annotated[
    str,
    typer.Option("--every", metavar="INTERVAL", help="Recompute it so often, e.g. 10m, 2h or 1d, not at each change."),
]
Key = Annotated[
    str, typer.Option("--key", metavar="COLUMNS", help="With --every: columns that tell its rows apart, e.g. id,place.")
]
File = Annotated[Path | None, typer.Option("--file", "-f", metavar="FILE", help="A file with its text.")]


@app.command()
def create(
    name: str,
    sql: Sql = "",
    file: File = None,
    every: Every = "",
    key: Key = "",
    replace: Annotated[bool, typer.Option("--replace", help="In place of the text that the view has.")] = False,
    dry_run: DryRun = False,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Have lakes keep a view, and show how. A table is SOURCE.DATABASE.TABLE in it, a view its name."""
    text = _text(sql, file, every, key)
    with connect(api, tenant) as client:
        if replace:
            _, tag = client.view(name)
            found = client.change_view(name, text, tag=tag, dry_run=dry_run)
        else:
            found = client.create_view(name, text, dry_run=dry_run)
    if as_json:
        typer.echo(document(found))
        return
    done = "Nothing was changed." if dry_run else f"View {found.view} is desired, version {found.version}."
    put(*([] if found.plan is None else _plan(found.plan)), Text(done))


@app.command("list")
def list_views(api: Api = DEFAULT_API, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False) -> None:
    """The tenant's views: state, and how fresh each is beside its tables."""
    with connect(api, tenant) as client:
        found = client.views()
    if as_json:
        typer.echo(document(JoinedViews(views=found)))
    else:
        put(_grid(found) if found else Text("There is no view. Run: menura view create NAME -f FILE"))


@app.command()
def show(name: str, api: Api = DEFAULT_API, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False) -> None:
    """One view: its text, its tables, and how it is in each lake."""
    with connect(api, tenant) as client:
        found, _ = client.view(name)
    if as_json:
        typer.echo(document(found))
    else:
        put(*_facts(found), _tables(found), *_lakes(found.lakes), Text(_block(found.sql)))


@app.command()
def explain(
    name: Annotated[str, typer.Argument(help="Of a view that is there; none: the text of an option.")] = "",
    sql: Sql = "",
    file: File = None,
    every: Every = "",
    key: Key = "",
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """How a view is kept, and what a change of each of its tables costs."""
    text = None if name else _text(sql, file, every, key)
    with connect(api, tenant) as client:
        found = client.view_plan(name) if text is None else client.plan_view(text)
    if as_json:
        typer.echo(document(found))
    else:
        put(*_plan(found))


@app.command()
def drop(
    name: str,
    dry_run: DryRun = False,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Lakes follow it no more; what they have of it stays."""
    with connect(api, tenant) as client:
        found = client.drop_view(name, dry_run=dry_run)
    if as_json:
        typer.echo(document(found))
    else:
        put(Text("Nothing was changed." if dry_run else f"View {found.view} is dropped."))


def _text(sql: str, file: Path | None, every: str, key: str) -> ViewText:
    return ViewText(_sql(sql, file), every, tuple(name.strip() for name in key.split(",")) if key else ())


def _sql(sql: str, file: Path | None) -> str:
    doing, data = "reading a view's text", "Nothing was changed."
    if bool(sql) == (file is not None):
        raise RequestInvalid(doing, "it takes either --sql or -f", data=data, remedy="Give -f FILE.")
    if file is None:
        return sql
    try:
        with file.open("rb") as opened:
            raw = opened.read(MOST_SQL_BYTES + 1)
        text = raw.decode()
    except OSError as unreadable:
        raise RequestInvalid(doing, f"{file}: {unreadable.strerror}", data=data, remedy="Give -f FILE.") from unreadable
    except UnicodeDecodeError as broken:
        raise RequestInvalid(doing, f"{file} is not UTF-8", data=data, remedy="Save it as UTF-8.") from broken
    if len(raw) > MOST_SQL_BYTES:
        raise RequestInvalid(doing, f"{file} has more than {MOST_SQL_BYTES} bytes", data=data, remedy="Shorten it.")
    return text


def _grid(found: Sequence[JoinedViewView]) -> Grid:
    columns = ["VIEW", "STATE", "FRESHNESS", "TABLES' FRESHNESS", "ROWS", "VERSION", "READS", "NOTE"]
    gives_way = ["VERSION", "ROWS", "READS", "TABLES' FRESHNESS"]
    grid = Grid(
        *columns, right=columns[2:6], folds=["READS"], gives_way=gives_way, below="NOTE", name="VIEW"
    )  # fmt: skip
    ages = {view.view: view.freshness_us for view in found}
    for view in found:
        grid.add_row(
            Text(view.view, style="bold"),
            _state(view),
            duration(view.freshness_us),
            _oldest(view, ages),
            count(view.rows),
            str(view.version),
            Text(plain(", ".join(_reads(view)))),
            Text("" if view.problem is None else plain(view.problem.message)),
        )
    return grid


def _state(view: JoinedViewView) -> Text:
    return Text(view.state.replace("_", " "), style=STATE_STYLES.get(view.state, "dim"))


def _oldest(view: JoinedViewView, of_views: Mapping[str, int | None]) -> str:
    """Of the tables and views that it reads, in the lake; unknown where one of them is."""
    read = [*(table.freshness_us for table in view.tables), *(of_views.get(name) for name in view.views)]
    ages = [age for age in read if age is not None]
    return duration(max(ages)) if ages and len(ages) == len(read) else UNKNOWN


def _reads(view: JoinedViewView) -> list[str]:
    return [*(f"{each.source}.{each.database}.{each.table}" for each in view.tables), *view.views]


def _facts(found: JoinedViewDetail) -> list[Text]:
    facts = {
        "view": Text(f"{found.view}, version {found.version} of {moment(found.changed_at_us)}", style="bold"),
        "state": _state(found),
        "freshness": Text(duration(found.freshness_us)),
        "rows": Text(count(found.rows)),
    }
    if found.views:
        facts["views"] = Text(f"it reads {', '.join(found.views)}")
    lines = [Text(f"{name:<10}").append_text(words) for name, words in facts.items()]
    problems = [each for each in (found.problem, found.plan_problem) if each is not None]
    return lines + [Text(plain(each.message), style="red") for each in problems]


def _tables(found: JoinedViewDetail) -> Grid:
    grid = Grid("TABLE", "STATE", "FRESHNESS", right=["FRESHNESS"], name="TABLE")
    for each in found.tables:
        name = plain(f"{each.source}.{each.database}.{each.table}")
        state = Text(each.state.replace("_", " "), style=STATE_STYLES.get(each.state, "dim"))
        grid.add_row(Text(name, style="bold"), state, duration(each.freshness_us))
    return grid


def _lakes(found: Sequence[ViewInLake]) -> list[RenderableType]:
    if not found:
        return [Text("No lake has its sources.")]
    grid = Grid(
        "LAKE", "STATE", "FRESHNESS", "ROWS", "WRITTEN", "CUTS",
        right=["FRESHNESS", "ROWS"], folds=["CUTS"], gives_way=["ROWS", "WRITTEN", "CUTS"], name="LAKE",
    )  # fmt: skip
    for lake in found:
        grid.add_row(
            Text(lake.lake, style="bold"),
            lake.state or "not told",
            duration(lake.freshness_us),
            count(lake.rows),
            moment(lake.applied_at_us),
            ", ".join(f"{cut.source} {cut.cut}" for cut in lake.cuts),
        )
    said = [lake for lake in found if lake.message and not lake.code]
    return [grid, *(Text(plain(f"{lake.lake}: {lake.message}.")) for lake in said)]


def _block(sql: str) -> str:
    return "\n".join(f"    {plain(line)}" for line in sql.expandtabs(4).splitlines())


def _plan(found: ViewPlan) -> list[RenderableType]:
    grid = Grid("INPUT", "ROLE", "ROWS", "JOINED ON", "FAN-OUT", right=["ROWS"], folds=["JOINED ON", "FAN-OUT"],
                gives_way=["ROWS", "JOINED ON"], name="INPUT")  # fmt: skip
    for each in found.inputs:
        rows = UNKNOWN if each.estimated_rows is None else f"about {count(each.estimated_rows)}"
        grid.add_row(
            Text(plain(each.name), style="bold"), each.role, rows, plain(", ".join(each.joined_on)), plain(each.fan_out)
        )
    return [grid, *(Text(plain(line)) for line in found.lines)]
