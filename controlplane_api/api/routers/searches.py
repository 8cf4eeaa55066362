"""Searches of tables and joined views, and the newest changes of tables, which the search service answers.

Who is given rows of which table stands in the audit log: once for each caller and table in `AUDIT_SECONDS`, since a
search page asks with each letter, and a table's page every few seconds. The text and the filters do not: they are
values of rows, and would outlive these there.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from menura.views.definition import VIEW_DATABASE, VIEW_SOURCE
from starlette.concurrency import run_in_threadpool

from controlplane_api.api.openapi import refusals
from controlplane_api.api.pages import Cursor, Limit, read_cursor, write_cursor
from controlplane_api.api.paths import (
    Command,
    ControlDatabase,
    JoinedViewName,
    SourceName,
    TableName,
    TenantName,
    current_command,
)
from controlplane_api.api.requests import SearchRequest
from controlplane_api.api.search_service import SearchService, required
from controlplane_api.api.views import (
    RecentChanges,
    SearchAnswer,
    SearchIndexes,
    SearchIndexFacts,
    SearchIndexPage,
    SearchIndexView,
)
from controlplane_api.database import Database
from controlplane_api.errors import (
    RecentChangesUnknown,
    SearchAway,
    SearchBusy,
    SearchIndexUnknown,
    SearchMissing,
    SearchRefused,
)
from controlplane_api.identity import audit
from gateway.rate import Rates

router = APIRouter(prefix="/api/v1/tenants/{tenant}", tags=["search"])

AUDIT_SECONDS, MAX_AUDITED = 600.0, 10_000
#: see spark_sink/search/recent_changes.py
MOST_CHANGES = 50
_ANY = (SearchMissing, SearchBusy, SearchAway)
_OF_INDEX = refusals(*_ANY, SearchIndexUnknown, SearchRefused)
_OF_CHANGES = refusals(*_ANY, RecentChangesUnknown, SearchRefused)


@dataclass(frozen=True, slots=True)
class Searching:
    """How the application searches."""

    service: SearchService | None = None
    #: who searched what of late
    told: Rates[tuple[str, str, str]] = field(
        default_factory=lambda: Rates[tuple[str, str, str]](1 / AUDIT_SECONDS, 1, MAX_AUDITED)
    )


def current_searching(request: Request) -> Searching:
    searching = request.state.searching
    if not isinstance(searching, Searching):
        raise TypeError("the application sets state.searching")
    return searching


CurrentSearching = Annotated[Searching, Depends(current_searching)]
CurrentCommand = Annotated[Command, Depends(current_command)]


@router.get("/search-indexes", responses=refusals(*_ANY))
async def get_search_indexes(
    tenant: TenantName, searching: CurrentSearching, cursor: Cursor = "", limit: Limit = 100
) -> SearchIndexes:
    """Tables and views of which there is an index, in order of source, database and table, with how far each is."""
    after = read_cursor(cursor, str, str, str) or ()
    asked = {"tenant": tenant, "limit": limit, "after": list(map(str, after))}
    found = await required(searching.service).ask(SearchIndexPage, tenant, "/v1/indexes", asked)
    return SearchIndexes(
        indexes=[_index(each) for each in found.indexes],
        next_cursor=None if found.next is None else write_cursor(*found.next),
    )


@router.post("/sources/{source}/tables/{database}/{table}/search", responses=_OF_INDEX)
async def search_table(
    tenant: TenantName,
    source: SourceName,
    table: TableName,
    request: SearchRequest,
    searching: CurrentSearching,
    command: CurrentCommand,
    database: ControlDatabase,
) -> SearchAnswer:
    """Rows of the table's index that have all words of the text and fit all filters. Nothing is changed."""
    return await _search(searching, command, database, (source, *table), request)


@router.post("/views/{view}/search", responses=_OF_INDEX)
async def search_view(
    tenant: TenantName,
    view: JoinedViewName,
    request: SearchRequest,
    searching: CurrentSearching,
    command: CurrentCommand,
    database: ControlDatabase,
) -> SearchAnswer:
    """Rows of the view's index, joined, that have all words of the text and fit all filters. Nothing is changed."""
    return await _search(searching, command, database, (VIEW_SOURCE, VIEW_DATABASE, view), request)


@router.get("/sources/{source}/tables/{database}/{table}/changes", responses=_OF_CHANGES)
async def get_recent_changes(
    tenant: TenantName,
    source: SourceName,
    table: TableName,
    searching: CurrentSearching,
    command: CurrentCommand,
    database: ControlDatabase,
    limit: Annotated[int, Query(ge=1, le=MOST_CHANGES)] = 20,
) -> RecentChanges:
    """The newest changes of the table's rows that the lake has, with their values before and after."""
    asked = {"tenant": tenant, "source": source, "database": table[0], "table": table[1], "limit": limit}
    record = partial(_audit, searching, command, database, "changes")
    return await required(searching.service).ask(RecentChanges, tenant, "/v1/changes", asked, record)


async def _search(
    searching: Searching, command: Command, database: Database, table: tuple[str, str, str], request: SearchRequest
) -> SearchAnswer:
    names = dict(zip(("source", "database", "table"), table, strict=True))
    asked = {"tenant": command.tenant, **names, **request.model_dump()}
    record = partial(_audit, searching, command, database, "search")
    return await required(searching.service).ask(SearchAnswer, command.tenant, "/v1/search", asked, record)


async def _audit(searching: Searching, command: Command, database: Database, action: str) -> None:
    """No row leaves before the audit log has who is given it."""
    rate = searching.told.of_name((command.caller.actor, command.tenant, f"{action} {command.found}"))
    if rate.try_take():
        try:
            await run_in_threadpool(_record, database, command, action)
        except BaseException:
            rate.put_back()
            raise


def _record(database: Database, command: Command, action: str) -> None:
    with database.write() as connection:
        audit.record(connection, command.tenant, command.caller.actor, action, found=command.found)


def _index(found: SearchIndexFacts) -> SearchIndexView:
    facts = found.model_dump()
    if (found.source, found.database) != (VIEW_SOURCE, VIEW_DATABASE):
        return SearchIndexView(**facts, view="")
    return SearchIndexView(**{**facts, "source": "", "database": "", "table": ""}, view=found.table)
