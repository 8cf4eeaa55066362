"""The REST interface as the commands use it: one tenant of one API."""

import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import httpx
from menura.naming import TableName
from pydantic import ValidationError

from controlplane_api.api.views import (
    Accepted,
    AgentChanged,
    ApiTokenCreated,
    ApiTokens,
    Audit,
    DumpChanged,
    DumpDetail,
    Dumps,
    DumpView,
    Fleet,
    LakeForgotten,
    Lakes,
    LoginLinkCreated,
    OtherServerView,
    Outcomes,
    QuarantineView,
    SourceAssigned,
    TableEvents,
    Tables,
    TableView,
    TokenCreated,
    Tokens,
    View,
)
from controlplane_api.errors import ApiFailed, ApiUnreachable

PAGE_TABLES = 1_000
PAGE_DUMPS = 1_000

V = TypeVar("V", bound=View)


class ApiClient:
    """Raises `ApiUnreachable` and `ApiFailed`. Close it, or use it as a context."""

    def __init__(self, api: str, tenant: str, token: str = "", ca: Path | None = None) -> None:
        """`token`: of the API. `ca`: whose certificates are good, in place of those that the system trusts."""
        self._api = api
        self._base = f"/v1/tenants/{quote(tenant, safe='')}"
        try:
            headers = {"authorization": f"Bearer {token}"} if token else {}
            verify = True if ca is None else ssl.create_default_context(cafile=ca)
            self._http = httpx.Client(base_url=api, timeout=30, headers=headers, verify=verify, trust_env=False)
        except (httpx.InvalidURL, ValueError) as broken:
            raise ApiUnreachable(
                "reading the API's address", str(broken), remedy="Set --api to http://HOST:PORT."
            ) from broken

    def __enter__(self) -> "ApiClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def fleet(self) -> Fleet:
        return self._ask(Fleet, "GET", "/fleet")

    def tables(self, source: str, *, text: str = "", state: str = "", synced: bool = False) -> list[TableView]:
        """All that match, over as many pages as it takes."""
        found: list[TableView] = []
        query: dict[str, Any] = {"text": text, "synced": synced, "limit": PAGE_TABLES}
        if state:
            query["state"] = state
        while True:
            page = self._ask(Tables, "GET", f"/sources/{quote(source, safe='')}/tables", query=query)
            found += page.tables
            if page.next_cursor is None:
                return found
            query["cursor"] = page.next_cursor

    def events(self, source: str, database: str, table: str) -> TableEvents:
        named = "/".join(quote(part, safe="") for part in (database, table))
        return self._ask(TableEvents, "GET", f"/sources/{quote(source, safe='')}/tables/{named}/events")

    def create_token(self, agent: str, ttl_seconds: int) -> TokenCreated:
        return self._ask(TokenCreated, "POST", "/tokens", body={"agent": agent or None, "ttl_seconds": ttl_seconds})

    def tokens(self) -> Tokens:
        return self._ask(Tokens, "GET", "/tokens")

    def revoke_token(self, token: str) -> Tokens:
        return self._ask(Tokens, "POST", f"/tokens/{quote(token, safe='')}/revoke", body={})

    def create_api_token(self, name: str, role: str, ttl_seconds: int, *, fleet: bool) -> ApiTokenCreated:
        body = {"name": name, "role": role, "ttl_seconds": ttl_seconds}
        return self._ask(ApiTokenCreated, "POST", _api_tokens(fleet), body=body, of_tenant=not fleet)

    def api_tokens(self, *, fleet: bool) -> ApiTokens:
        return self._ask(ApiTokens, "GET", _api_tokens(fleet), of_tenant=not fleet)

    def revoke_api_token(self, token: str, *, fleet: bool) -> ApiTokens:
        path = f"{_api_tokens(fleet)}/{quote(token, safe='')}/revoke"
        return self._ask(ApiTokens, "POST", path, body={}, of_tenant=not fleet)

    def create_login_link(self) -> LoginLinkCreated:
        return self._ask(LoginLinkCreated, "POST", "/v1/login-links", body={}, of_tenant=False)

    def add_agent(self, agent: str) -> AgentChanged:
        return self._ask(AgentChanged, "POST", "/agents", body={"agent": agent})

    def revoke_agent(self, agent: str) -> AgentChanged:
        return self._ask(AgentChanged, "POST", f"/agents/{quote(agent, safe='')}/revoke", body={})

    def assign(self, source: str, agent: str) -> SourceAssigned:
        return self._ask(SourceAssigned, "POST", f"/sources/{quote(source, safe='')}/assign", body={"agent": agent})

    def audit(self, limit: int, *, fleet: bool = False) -> Audit:
        path = "/v1/audit" if fleet else "/audit"
        return self._ask(Audit, "GET", path, query={"limit": limit}, of_tenant=not fleet)

    def other_server(self, source: str) -> OtherServerView:
        return self._ask(OtherServerView, "GET", f"/sources/{quote(source, safe='')}/other-server")

    def accept(self, source: str, identity: str) -> Accepted:
        path = f"/sources/{quote(source, safe='')}/other-server/accept"
        return self._ask(Accepted, "POST", path, body={"identity": identity})

    def quarantine(self, source: str) -> QuarantineView:
        return self._ask(QuarantineView, "GET", f"/sources/{quote(source, safe='')}/quarantine")

    def retry_quarantine(self, source: str) -> QuarantineView:
        return self._ask(QuarantineView, "POST", f"/sources/{quote(source, safe='')}/quarantine/retry", body={})

    def skip_quarantine(self, source: str) -> Outcomes:
        return self._ask(Outcomes, "POST", f"/sources/{quote(source, safe='')}/quarantine/skip", body={})

    def start(
        self,
        source: str,
        tables: Sequence[TableName] | Literal["lost"] | None,
        start: str | dict[str, str],
        dump: Mapping[str, object] | None = None,
    ) -> Outcomes:
        """`dump`: how the dump shall run that a start from "dump" makes."""
        named = tables if tables == "lost" else _names(tables)
        body = {"tables": named, "start": start, "dump": dump or {}}
        return self._ask(Outcomes, "POST", f"/sources/{quote(source, safe='')}/start", body=body)

    def stop(self, source: str, tables: Sequence[TableName] | None) -> Outcomes:
        return self._ask(Outcomes, "POST", f"/sources/{quote(source, safe='')}/stop", body={"tables": _names(tables)})

    def retry(self, source: str, tables: Sequence[TableName] | None) -> Outcomes:
        return self._ask(Outcomes, "POST", f"/sources/{quote(source, safe='')}/retry", body={"tables": _names(tables)})

    def resync(
        self, source: str, tables: Sequence[TableName] | None, dump: Mapping[str, object] | None = None
    ) -> Outcomes:
        body = {"tables": _names(tables), "dump": dump or {}}
        return self._ask(Outcomes, "POST", f"/sources/{quote(source, safe='')}/resync", body=body)

    def lakes(self) -> Lakes:
        return self._ask(Lakes, "GET", "/v1/lakes", of_tenant=False)

    def forget_lake(self, lake: str) -> LakeForgotten:
        path = f"/v1/lakes/{quote(lake, safe='')}/forget"
        return self._ask(LakeForgotten, "POST", path, body={}, of_tenant=False)

    def start_dumps(self, source: str, tables: Sequence[TableName] | None, options: Mapping[str, object]) -> Outcomes:
        body = {"tables": _names(tables), **options}
        return self._ask(Outcomes, "POST", f"/sources/{quote(source, safe='')}/dumps", body=body)

    def dumps(self, source: str | None = None, *, running: bool = False, limit: int | None = None) -> list[DumpView]:
        """The newest first: `limit` of them, or all over as many pages as it takes."""
        found: list[DumpView] = []
        query: dict[str, Any] = {"running": running, "limit": min(limit or PAGE_DUMPS, PAGE_DUMPS)}
        path = "/dumps" if source is None else f"/sources/{quote(source, safe='')}/dumps"
        while True:
            page = self._ask(Dumps, "GET", path, query=query)
            found += page.dumps
            if page.next_cursor is None or (limit is not None and len(found) >= limit):
                return found[:limit]
            query["cursor"] = page.next_cursor

    def dump(self, source: str, dump: str) -> DumpDetail:
        return self._ask(DumpDetail, "GET", _dump_path(source, dump))

    def command_dump(self, source: str, dump: str, word: str, body: Mapping[str, object]) -> DumpChanged:
        """`word` is pause, resume, cancel, priority or limits."""
        return self._ask(DumpChanged, "POST", f"{_dump_path(source, dump)}/{word}", body=body)

    def _ask(
        self,
        view: type[V],
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: object = None,
        of_tenant: bool = True,
    ) -> V:
        try:
            answer = self._http.request(method, self._base + path if of_tenant else path, params=query, json=body)
        except (httpx.TransportError, httpx.UnsupportedProtocol) as failure:
            raise ApiUnreachable(
                f"asking the API at {self._api}",
                str(failure) or type(failure).__name__,
                remedy="Check that `menura api run` or `menura up` runs there; --api or MENURA_API names it.",
            ) from failure
        if not answer.is_success:
            raise _failed(self._api, answer)
        try:
            return view.model_validate_json(answer.content)
        except ValidationError as strange:
            raise ApiFailed(
                f"asking the API at {self._api}",
                f"its answer is not of the form of this version ({strange.error_count()} differences)",
                remedy="Use the same version on both sides.",
            ) from strange


def _api_tokens(fleet: bool) -> str:
    return "/v1/api-tokens" if fleet else "/api-tokens"


def _dump_path(source: str, dump: str) -> str:
    return f"/sources/{quote(source, safe='')}/dumps/{quote(dump, safe='')}"


def _names(tables: Sequence[TableName] | None) -> object:
    return "all" if tables is None else [{"database": database, "table": table} for database, table in tables]


def _failed(api: str, answer: httpx.Response) -> ApiFailed:
    try:
        facts = answer.json()
        texts = {name: str(facts.get(name, "")) for name in ("code", "doing", "found", "data", "remedy", "source")}
    except (ValueError, AttributeError):
        return ApiFailed(
            f"asking the API at {api}",
            f"it answered {answer.status_code} and no problem document",
            remedy="Check that --api names Menura's API.",
        )
    return ApiFailed(
        texts["doing"] or f"asking the API at {api}",
        f"{texts['code']}: {texts['found']}",
        data=texts["data"],
        remedy=texts["remedy"],
        source=texts["source"],
    )
