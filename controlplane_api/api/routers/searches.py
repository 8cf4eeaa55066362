"""Searches of tables and joined views, which the search service answers.

Who searches which table stands in the audit log: once for each caller and table in `AUDIT_SECONDS`, since a search page
asks with each letter. The text and the filters do not: they are values of rows, and would outlive these there.
"""

from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, Depends, Request
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
    SearchAnswer,
    SearchIndexes,
    SearchIndexFacts,
    SearchIndexPage,
    SearchIndexView,
)
from controlplane_api.database import Database
from controlplane_api.errors import SearchAway, SearchBusy, SearchIndexUnknown, SearchMissing, SearchRefused
from controlplane_api.identity import audit
from gateway.rate import Rates

router = APIRouter(prefix="/api/v1/tenants/{tenant}", tags=["search"])

AUDIT_SECONDS, MAX_AUDITED = 600.0, 10_000
_ANY = (SearchMissing, SearchBusy, SearchAway)
_OF_INDEX = refusals(*_ANY, SearchIndexUnknown, SearchRefused)


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


async def _search(
    searching: Searching, command: Command, database: Database, table: tuple[str, str, str], request: SearchRequest
) -> SearchAnswer:
    """No row leaves before the audit log has who is given it."""
    names = dict(zip(("source", "database", "table"), table, strict=True))
    asked = {"tenant": command.tenant, **names, **request.model_dump()}
    answer = await required(searching.service).ask(SearchAnswer, command.tenant, "/v1/search", asked)
    rate = searching.told.of_name((command.caller.actor, command.tenant, command.found))
    if rate.try_take():
        try:
            await run_in_threadpool(_record, database, command)
        except BaseException:
            rate.put_back()
            raise
    return answer


def _record(database: Database, command: Command) -> None:
    with database.write() as connection:
        audit.record(connection, command.tenant, command.caller.actor, "search", found=command.found)


def _index(found: SearchIndexFacts) -> SearchIndexView:
    facts = found.model_dump()
    if (found.source, found.database) != (VIEW_SOURCE, VIEW_DATABASE):
        return SearchIndexView(**facts, view="")
    return SearchIndexView(**{**facts, "source": "", "database": "", "table": ""}, view=found.table)
