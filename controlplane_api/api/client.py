"""The REST interface as the commands use it: one tenant of one API."""

import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import httpx
from menura.naming import TableName, url_segment
from pydantic import ValidationError

from controlplane_api.api.views import (
    Accepted,
    AgentChanged,
    ApiTokenCreated,
    ApiTokens,
    ApiTokenView,
    Audit,
    ConfigurationChanged,
    ConfigurationView,
    Coverages,
    CoverageView,
    Definitions,
    DumpChanged,
    DumpDetail,
    Dumps,
    DumpView,
    Fleet,
    FleetPlan,
    JoinedViewDetail,
    JoinedViews,
    JoinedViewView,
    LakeForgotten,
    Lakes,
    Ledger,
    LedgerChecked,
    LedgerEntryView,
    LoginLinkCreated,
    OffsetView,
    OperationDetail,
    Operations,
    OtherServerView,
    Outcomes,
    PieceStored,
    Proofs,
    ProofView,
    QuarantineView,
    RecentChanges,
    ReleaseRemoved,
    Releases,
    ReleaseView,
    RepairView,
    RolloutAgents,
    RolloutAgentView,
    RolloutPlan,
    RolloutShown,
    RolloutView,
    Rules,
    SourceAssigned,
    SourceView,
    TableDetail,
    TableEvents,
    Tables,
    TableView,
    Tenants,
    TenantView,
    TokenCreated,
    Tokens,
    TokenView,
    VerificationScheduleView,
    View,
    ViewDropped,
    ViewPlan,
)
from controlplane_api.errors import ApiFailed, ApiUnreachable, TableUnknown

PAGE_ROWS = 1_000

#: tables by name, by globs of their names, those whose desired state is lost, or None for all
Which = Sequence[TableName] | Mapping[str, object] | Literal["lost"] | None
V = TypeVar("V", bound=View)
P = TypeVar("P", Tenants, Tables, Definitions, Ledger, Proofs, OperationDetail, Dumps, JoinedViews, RolloutAgents)


def _trust(api: str, ca: Path | None) -> ssl.SSLContext | bool:
    """By HTTP nothing is verified: reading all that the system trusts would take most of a short command's time."""
    if ca is not None:
        return ssl.create_default_context(cafile=ca)
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if api.lower().startswith("http:") else True


@dataclass(frozen=True, slots=True)
class ViewText:
    """Of a joined view, and how often it is recomputed; '': it is followed."""

    sql: str
    every: str = ""
    key: tuple[str, ...] = ()

    def body(self) -> dict[str, object]:
        """The fields of `requests.JoinedViewChange`."""
        key = {"key": list(self.key)} if self.key else {}
        return {"sql": self.sql, **({"every": self.every} if self.every else {}), **key}


class ApiClient:
    """Raises `ApiUnreachable` and `ApiFailed`. Close it, or use it as a context."""

    def __init__(self, api: str, tenant: str, token: str = "", ca: Path | None = None) -> None:
        """`token`: of the API. `ca`: whose certificates are good, in place of those that the system trusts."""
        self._api = api
        self._base = f"/api/v1/tenants/{quote(tenant, safe='')}"
        try:
            headers = {"authorization": f"Bearer {token}"} if token else {}
            verify = _trust(api, ca)
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

    def tenants(self) -> list[TenantView]:
        """All that the caller may see, over as many pages as it takes."""
        pages = self._pages(Tenants, "/api/v1/fleet", {"count_tables": True}, of_tenant=False)
        return [tenant for page in pages for tenant in page.tenants]

    def source(self, source: str) -> SourceView:
        return self._ask(SourceView, "GET", f"/sources/{quote(source, safe='')}")

    def tables(self, source: str, *, text: str = "", state: str = "", synced: bool = False) -> list[TableView]:
        """All that match, over as many pages as it takes."""
        query = {"text": text, "synced": synced} | ({"state": state} if state else {})
        pages = self._pages(Tables, f"/sources/{quote(source, safe='')}/tables", query)
        return [table for page in pages for table in page.tables]

    def events(self, source: str, database: str, table: str) -> TableEvents:
        return self._ask(TableEvents, "GET", f"{_of_table(source, database, table)}/events")

    def table(self, source: str, database: str, table: str) -> TableDetail:
        return self._ask(TableDetail, "GET", _of_table(source, database, table))

    def find_table(self, source: str, database: str, table: str) -> TableDetail | None:
        """None: the source has none of this name now, and no sync of one."""
        try:
            found = self.table(source, database, table)
        except ApiFailed as failed:
            if failed.answered != TableUnknown.code:
                raise
            return None
        return None if found.gone and found.desired is None else found

    def offset(self, source: str, database: str, table: str) -> tuple[OffsetView, str]:
        """And the ETag, on which it can be altered."""
        tags: list[str] = []
        path = f"{_of_table(source, database, table)}/offset"
        return self._ask(OffsetView, "GET", path, tags=tags), tags[0]

    def alter_offset(
        self, source: str, table: TableName, position: str, reason: str, *, tag: str, dry_run: bool
    ) -> OffsetView:
        path, body = f"{_of_table(source, *table)}/offset", {"position": position, "reason": reason}
        return self._ask(OffsetView, "PUT", path, query={"dry_run": dry_run}, body=body, tag=tag)

    def definitions(self, source: str, database: str, table: str) -> Definitions:
        """All that are kept, over as many pages as it takes."""
        pages = list(self._pages(Definitions, f"{_of_table(source, database, table)}/definitions"))
        found = [definition for page in pages for definition in page.definitions]
        return Definitions(definitions=found, dropped=pages[-1].dropped)

    def recent_changes(self, source: str, database: str, table: str, limit: int) -> RecentChanges:
        return self._ask(RecentChanges, "GET", f"{_of_table(source, database, table)}/changes?limit={limit}")

    def ledger(self, source: str, database: str, table: str) -> list[LedgerEntryView]:
        """All of it, the newest first, over as many pages as it takes."""
        pages = self._pages(Ledger, f"{_of_table(source, database, table)}/ledger")
        return [entry for page in pages for entry in page.entries]

    def check_ledger(self, source: str, database: str, table: str, head: str) -> LedgerChecked:
        path = f"{_of_table(source, database, table)}/ledger/check"
        return self._ask(LedgerChecked, "GET", path, query={"head": head})

    def create_token(self, agent: str, ttl_seconds: int) -> TokenCreated:
        return self._ask(TokenCreated, "POST", "/tokens", body={"agent": agent or None, "ttl_seconds": ttl_seconds})

    def tokens(self) -> Tokens:
        return self._ask(Tokens, "GET", "/tokens", query={"limit": PAGE_ROWS})

    def revoke_token(self, token: str) -> TokenView:
        return self._ask(TokenView, "POST", f"/tokens/{quote(token, safe='')}/revoke", body={})

    def create_api_token(self, name: str, role: str, ttl_seconds: int, *, fleet: bool) -> ApiTokenCreated:
        body = {"name": name, "role": role, "ttl_seconds": ttl_seconds}
        return self._ask(ApiTokenCreated, "POST", _api_tokens(fleet), body=body, of_tenant=not fleet)

    def api_tokens(self, *, fleet: bool) -> ApiTokens:
        return self._ask(ApiTokens, "GET", _api_tokens(fleet), query={"limit": PAGE_ROWS}, of_tenant=not fleet)

    def revoke_api_token(self, token: str, *, fleet: bool) -> ApiTokenView:
        path = f"{_api_tokens(fleet)}/{quote(token, safe='')}/revoke"
        return self._ask(ApiTokenView, "POST", path, body={}, of_tenant=not fleet)

    def create_login_link(self) -> LoginLinkCreated:
        return self._ask(LoginLinkCreated, "POST", "/api/v1/login-links", body={}, of_tenant=False)

    def add_agent(self, agent: str) -> AgentChanged:
        return self._ask(AgentChanged, "POST", "/agents", body={"agent": agent})

    def revoke_agent(self, agent: str) -> AgentChanged:
        return self._ask(AgentChanged, "POST", f"/agents/{quote(agent, safe='')}/revoke", body={})

    def assign(self, source: str, agent: str) -> SourceAssigned:
        return self._ask(SourceAssigned, "POST", f"/sources/{quote(source, safe='')}/assign", body={"agent": agent})

    def configuration(self, source: str) -> ConfigurationView:
        return self._ask(ConfigurationView, "GET", f"/sources/{quote(source, safe='')}/configuration")

    def configure(
        self, source: str, agent: str, configuration: Mapping[str, object], before: Literal["none", "some", "any"]
    ) -> ConfigurationChanged:
        body = {"agent": agent, "configuration": configuration, "before": before}
        return self._ask(ConfigurationChanged, "POST", f"/sources/{quote(source, safe='')}/configuration", body=body)

    def remove_configuration(self, source: str, *, stop_tables: bool) -> ConfigurationChanged:
        path = f"/sources/{quote(source, safe='')}/configuration/remove"
        return self._ask(ConfigurationChanged, "POST", path, body={"stop_tables": stop_tables})

    def plan_fleet(
        self, agents: Mapping[str, object], views: Mapping[str, object] | None, *, prune: bool, apply: bool
    ) -> FleetPlan:
        """Done where `apply` says so."""
        path = f"/fleet/{'apply' if apply else 'plan'}"
        return self._ask(FleetPlan, "POST", path, body={"agents": agents, "views": views, "prune": prune})

    def views(self) -> list[JoinedViewView]:
        """All of the tenant, over as many pages as it takes."""
        return [view for page in self._pages(JoinedViews, "/views") for view in page.views]

    def view(self, name: str) -> tuple[JoinedViewDetail, str]:
        """And the ETag, on which it can be changed."""
        tags: list[str] = []
        return self._ask(JoinedViewDetail, "GET", _view_path(name), tags=tags), tags[0]

    def create_view(self, name: str, text: ViewText, *, dry_run: bool) -> JoinedViewDetail:
        query, body = {"dry_run": dry_run}, {"name": name, **text.body()}
        return self._ask(JoinedViewDetail, "POST", "/views", query=query, body=body)

    def change_view(self, name: str, text: ViewText, *, tag: str, dry_run: bool) -> JoinedViewDetail:
        query, body = {"dry_run": dry_run}, text.body()
        return self._ask(JoinedViewDetail, "PUT", _view_path(name), query=query, body=body, tag=tag)

    def drop_view(self, name: str, *, dry_run: bool) -> ViewDropped:
        return self._ask(ViewDropped, "DELETE", _view_path(name), query={"dry_run": dry_run}, body={})

    def view_plan(self, name: str) -> ViewPlan:
        return self._ask(ViewPlan, "GET", f"{_view_path(name)}/plan")

    def plan_view(self, text: ViewText) -> ViewPlan:
        """Of a view that is not there yet."""
        return self._ask(ViewPlan, "POST", "/view-plans", body=text.body())

    def audit(self, limit: int, *, text: str = "", outcome: str = "", cursor: str = "", fleet: bool = False) -> Audit:
        path = "/api/v1/audit" if fleet else "/audit"
        asked = {"text": text, "outcome": outcome, "cursor": cursor}
        query = {"limit": limit} | {name: word for name, word in asked.items() if word}
        return self._ask(Audit, "GET", path, query=query, of_tenant=not fleet)

    def releases(self) -> list[ReleaseView]:
        return self._ask(Releases, "GET", "/agent-releases").releases

    def add_release(self, sums: str, signature: str, sizes: Mapping[str, int]) -> ReleaseView:
        body = {"sums": sums, "signature": signature, "sizes": sizes}
        return self._ask(ReleaseView, "POST", "/agent-releases", body=body)

    def put_package_part(self, version: str, name: str, offset: int, data: str) -> PieceStored:
        path = f"{_release_path(version)}/packages/{quote(name, safe='')}"
        return self._ask(PieceStored, "PUT", path, body={"offset": offset, "data": data})

    def complete_release(self, version: str) -> ReleaseView:
        return self._ask(ReleaseView, "POST", f"{_release_path(version)}/complete", body={})

    def remove_release(self, version: str) -> ReleaseRemoved:
        return self._ask(ReleaseRemoved, "DELETE", _release_path(version), body={})

    def plan_rollout(self, order: Mapping[str, object]) -> RolloutPlan:
        return self._ask(RolloutPlan, "POST", "/rollout-plans", body=order)

    def start_rollout(self, order: Mapping[str, object]) -> RolloutView:
        return self._ask(RolloutView, "POST", "/rollout/start", body=order)

    def command_rollout(self, word: str, body: Mapping[str, object]) -> RolloutView:
        """`word` is pause, resume, cancel, back or skip."""
        return self._ask(RolloutView, "POST", f"/rollout/{word}", body=body)

    def rollout(self) -> RolloutView | None:
        return self._ask(RolloutShown, "GET", "/rollout").rollout

    def rollout_agents(self, states: Sequence[str]) -> list[RolloutAgentView]:
        """Of the newest rollout, over as many pages as it takes."""
        pages = self._pages(RolloutAgents, "/rollout/agents", {"state": list(states)})
        return [agent for page in pages for agent in page.agents]

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
        tables: Which,
        start: str | dict[str, str],
        dump: Mapping[str, object] | None = None,
        *,
        dry_run: bool = False,
    ) -> Outcomes:
        """`dump`: how the dump shall run that a start from "dump" makes."""
        return self._command(source, "start", tables, {"start": start, "dump": dump or {}}, dry_run=dry_run)

    def stop(self, source: str, tables: Which, *, dry_run: bool = False) -> Outcomes:
        return self._command(source, "stop", tables, {}, dry_run=dry_run)

    def retry(self, source: str, tables: Which, *, dry_run: bool = False) -> Outcomes:
        return self._command(source, "retry", tables, {}, dry_run=dry_run)

    def resync(
        self, source: str, tables: Which, dump: Mapping[str, object] | None = None, *, dry_run: bool = False
    ) -> Outcomes:
        return self._command(source, "resync", tables, {"dump": dump or {}}, dry_run=dry_run)

    def rules(self, source: str) -> Rules:
        return self._ask(Rules, "GET", f"/sources/{quote(source, safe='')}/rules")

    def remove_rule(self, source: str, rule: str) -> Rules:
        path = f"/sources/{quote(source, safe='')}/rules/{quote(rule, safe='')}/remove"
        return self._ask(Rules, "POST", path, body={})

    def operations(self, source: str) -> Operations:
        return self._ask(Operations, "GET", f"/sources/{quote(source, safe='')}/operations")

    def operation(self, source: str, operation: str) -> OperationDetail:
        """With all of its tables, over as many pages as it takes."""
        path = f"/sources/{quote(source, safe='')}/operations/{quote(operation, safe='')}"
        pages = list(self._pages(OperationDetail, path))
        return pages[-1].model_copy(update={"of_tables": [table for page in pages for table in page.of_tables]})

    def _command(
        self, source: str, word: str, tables: Which, options: Mapping[str, object], *, dry_run: bool
    ) -> Outcomes:
        path = f"/sources/{quote(source, safe='')}/{word}"
        body = {"tables": _names(tables), **options}
        return self._ask(Outcomes, "POST", path, query={"dry_run": dry_run}, body=body)

    def lakes(self) -> Lakes:
        return self._ask(Lakes, "GET", "/api/v1/lakes", query={"limit": PAGE_ROWS}, of_tenant=False)

    def forget_lake(self, lake: str) -> LakeForgotten:
        path = f"/api/v1/lakes/{quote(lake, safe='')}/forget"
        return self._ask(LakeForgotten, "POST", path, body={}, of_tenant=False)

    def start_dumps(self, source: str, tables: Sequence[TableName] | None, options: Mapping[str, object]) -> Outcomes:
        body = {"tables": _names(tables), **options}
        return self._ask(Outcomes, "POST", f"/sources/{quote(source, safe='')}/dumps", body=body)

    def start_verifications(
        self, source: str, tables: Sequence[TableName] | None, options: Mapping[str, object]
    ) -> Outcomes:
        body = {"tables": _names(tables), **options}
        return self._ask(Outcomes, "POST", f"/sources/{quote(source, safe='')}/verifications", body=body)

    def start_repair(
        self, source: str, table: TableName, options: Mapping[str, object], *, dry_run: bool
    ) -> RepairView:
        return self._ask(
            RepairView, "POST", f"{_of_table(source, *table)}/repair", query={"dry_run": dry_run}, body=dict(options)
        )

    def proofs(self, source: str) -> list[ProofView]:
        """Of all tables that are synced, over as many pages as it takes."""
        pages = self._pages(Proofs, f"/sources/{quote(source, safe='')}/proofs")
        return [proof for page in pages for proof in page.proofs]

    def proof(self, source: str, database: str, table: str) -> ProofView:
        return self._ask(ProofView, "GET", f"{_of_table(source, database, table)}/proof")

    def verification_schedule(self, source: str) -> tuple[VerificationScheduleView, str]:
        """And the ETag, on which it can be changed."""
        tags: list[str] = []
        return self._ask(VerificationScheduleView, "GET", _schedule_path(source), tags=tags), tags[0]

    def set_verification_schedule(
        self, source: str, schedule: Mapping[str, object], *, tag: str, dry_run: bool
    ) -> VerificationScheduleView:
        path, query = _schedule_path(source), {"dry_run": dry_run}
        return self._ask(VerificationScheduleView, "PUT", path, query=query, body=schedule, tag=tag)

    def remove_verification_schedule(self, source: str, *, tag: str, dry_run: bool) -> VerificationScheduleView:
        path, query = _schedule_path(source), {"dry_run": dry_run}
        return self._ask(VerificationScheduleView, "DELETE", path, query=query, body={}, tag=tag)

    def coverages(self, source: str | None, within_seconds: int | None) -> list[CoverageView]:
        """Of one source, or of all."""
        query = {} if within_seconds is None else {"within_seconds": within_seconds}
        if source is None:
            return self._ask(Coverages, "GET", "/coverage", query=query).sources
        return [self._ask(CoverageView, "GET", f"/sources/{quote(source, safe='')}/coverage", query=query)]

    def dumps(self, source: str | None = None, *, running: bool = False, limit: int | None = None) -> list[DumpView]:
        """The newest first: `limit` of them, or all over as many pages as it takes."""
        path = "/dumps" if source is None else f"/sources/{quote(source, safe='')}/dumps"
        pages = self._pages(Dumps, path, {"running": running, "limit": min(limit or PAGE_ROWS, PAGE_ROWS)})
        return list(islice((dump for page in pages for dump in page.dumps), limit))

    def dump(self, source: str, dump: str) -> DumpDetail:
        return self._ask(DumpDetail, "GET", _dump_path(source, dump))

    def command_dump(self, source: str, dump: str, word: str, body: Mapping[str, object]) -> DumpChanged:
        """`word` is pause, resume, cancel, priority or limits."""
        return self._ask(DumpChanged, "POST", f"{_dump_path(source, dump)}/{word}", body=body)

    def _pages(
        self, view: type[P], path: str, query: Mapping[str, object] | None = None, *, of_tenant: bool = True
    ) -> Iterator[P]:
        """All of a list's, each asked for when the one before is taken."""
        asked = {"limit": PAGE_ROWS, **(query or {})}
        page = self._ask(view, "GET", path, query=asked, of_tenant=of_tenant)
        yield page
        while page.next_cursor is not None:
            page = self._ask(view, "GET", path, query={**asked, "cursor": page.next_cursor}, of_tenant=of_tenant)
            yield page

    def _ask(
        self,
        view: type[V],
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: object = None,
        of_tenant: bool = True,
        tag: str = "",
        tags: list[str] | None = None,
    ) -> V:
        """`tag`: for If-Match; `tags`: the answer's ETag is added."""
        url, headers = self._base + path if of_tenant else path, {"if-match": tag} if tag else {}
        try:
            answer = self._http.request(method, url, params=query, json=body, headers=headers)
        except (httpx.TransportError, httpx.UnsupportedProtocol) as failure:
            raise ApiUnreachable(
                f"asking the API at {self._api}",
                str(failure) or type(failure).__name__,
                remedy="Check that `menura api run` or `menura up` runs there; --api or MENURA_API names it.",
            ) from failure
        if not answer.is_success:
            raise _failed(self._api, answer)
        if tags is not None:
            tags.append(answer.headers.get("etag", ""))
        try:
            return view.model_validate_json(answer.content)
        except ValidationError as strange:
            raise ApiFailed(
                f"asking the API at {self._api}",
                f"its answer is not of the form of this version ({strange.error_count()} differences)",
                remedy="Use the same version on both sides.",
            ) from strange


def _api_tokens(fleet: bool) -> str:
    return "/api/v1/api-tokens" if fleet else "/api-tokens"


def _of_table(source: str, database: str, table: str) -> str:
    named = "/".join(url_segment(part) for part in (database, table))
    return f"/sources/{quote(source, safe='')}/tables/{named}"


def _dump_path(source: str, dump: str) -> str:
    return f"/sources/{quote(source, safe='')}/dumps/{quote(dump, safe='')}"


def _release_path(version: str) -> str:
    return f"/agent-releases/{quote(version, safe='')}"


def _view_path(name: str) -> str:
    return f"/views/{quote(name, safe='')}"


def _schedule_path(source: str) -> str:
    return f"/sources/{quote(source, safe='')}/verification-schedule"


def _names(tables: Which) -> object:
    if tables is None:
        return "all"
    if isinstance(tables, str | Mapping):
        return tables
    return [{"database": database, "table": table} for database, table in tables]


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
    failed = ApiFailed(
        texts["doing"] or f"asking the API at {api}",
        f"{texts['code']}: {texts['found']}",
        data=texts["data"],
        remedy=texts["remedy"],
        source=texts["source"],
    )
    failed.answered = texts["code"]
    return failed
