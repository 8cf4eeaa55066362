"""What each route needs of its caller: one table, and every route asked as every caller."""

import inspect
import re
from collections.abc import Iterator

import httpx
import pytest
from fastapi import APIRouter

from controlplane_api.api.app import ROUTERS, Access
from controlplane_api.api.gate import rules_of
from controlplane_api.api.roles import AUDITED
from controlplane_api.database import Database
from controlplane_api.identity.callers import Role
from controlplane_api.registry.sql_registry import SqlRegistry
from tests.controlplane_api import facts
from tests.controlplane_api.callers import made
from tests.controlplane_api.conftest import serving
from tests.stack import http_client

#: the least that a caller must be: an operator reads no rows, an admin does what both may
LEAST = {
    "GET /api/v1/fleet": "anybody",
    "GET /api/v1/tenants/{tenant}/fleet": "viewer",
    "GET /api/v1/tenants/{tenant}/agents": "viewer",
    "GET /api/v1/tenants/{tenant}/sources": "viewer",
    "GET /api/v1/tenants/{tenant}/sources/{source}": "viewer",
    "GET /api/v1/tenants/{tenant}/sources/{source}/history": "viewer",
    "GET /api/v1/tenants/{tenant}/sources/{source}/other-server": "viewer",
    "POST /api/v1/tenants/{tenant}/sources/{source}/other-server/accept": "operator",
    "GET /api/v1/tenants/{tenant}/sources/{source}/quarantine": "viewer",
    "POST /api/v1/tenants/{tenant}/sources/{source}/quarantine/retry": "operator",
    "POST /api/v1/tenants/{tenant}/sources/{source}/quarantine/skip": "operator",
    "POST /api/v1/tenants/{tenant}/tokens": "admin",
    "GET /api/v1/tenants/{tenant}/tokens": "admin",
    "POST /api/v1/tenants/{tenant}/tokens/{token}/revoke": "admin",
    "POST /api/v1/tenants/{tenant}/agents": "admin",
    "POST /api/v1/tenants/{tenant}/agents/{agent}/revoke": "admin",
    "POST /api/v1/tenants/{tenant}/sources/{source}/assign": "admin",
    "GET /api/v1/tenants/{tenant}/audit": "admin",
    "POST /api/v1/tenants/{tenant}/api-tokens": "admin",
    "GET /api/v1/tenants/{tenant}/api-tokens": "admin",
    "POST /api/v1/tenants/{tenant}/api-tokens/{api_token}/revoke": "admin",
    "POST /api/v1/api-tokens": "fleet-admin",
    "GET /api/v1/api-tokens": "fleet-admin",
    "POST /api/v1/api-tokens/{api_token}/revoke": "fleet-admin",
    "GET /api/v1/audit": "fleet-admin",
    "GET /api/v1/tenants/{tenant}/sources/{source}/tables": "viewer",
    "GET /api/v1/tenants/{tenant}/sources/{source}/tables/{database}/{table}": "viewer",
    "GET /api/v1/tenants/{tenant}/sources/{source}/tables/{database}/{table}/events": "viewer",
    "GET /api/v1/tenants/{tenant}/sources/{source}/tables/{database}/{table}/definitions": "viewer",
    "GET /api/v1/tenants/{tenant}/sources/{source}/tables/{database}/{table}/ledger": "viewer",
    "GET /api/v1/tenants/{tenant}/sources/{source}/tables/{database}/{table}/ledger/check": "viewer",
    "GET /api/v1/tenants/{tenant}/sources/{source}/tables/{database}/{table}/offset": "viewer",
    "PUT /api/v1/tenants/{tenant}/sources/{source}/tables/{database}/{table}/offset": "operator",
    "GET /api/v1/tenants/{tenant}/sources/{source}/proofs": "viewer",
    "GET /api/v1/tenants/{tenant}/sources/{source}/verdicts/events": "viewer",
    "GET /api/v1/tenants/{tenant}/sources/{source}/tables/{database}/{table}/proof": "viewer",
    "GET /api/v1/tenants/{tenant}/sources/{source}/tables/{database}/{table}/verdicts": "viewer",
    "POST /api/v1/tenants/{tenant}/sources/{source}/tables/{database}/{table}/start": "operator",
    "POST /api/v1/tenants/{tenant}/sources/{source}/tables/{database}/{table}/stop": "operator",
    "POST /api/v1/tenants/{tenant}/sources/{source}/start": "operator",
    "POST /api/v1/tenants/{tenant}/sources/{source}/stop": "operator",
    "POST /api/v1/tenants/{tenant}/sources/{source}/tables/{database}/{table}/retry": "operator",
    "POST /api/v1/tenants/{tenant}/sources/{source}/tables/{database}/{table}/resync": "operator",
    "POST /api/v1/tenants/{tenant}/sources/{source}/retry": "operator",
    "POST /api/v1/tenants/{tenant}/sources/{source}/resync": "operator",
    "GET /api/v1/tenants/{tenant}/dumps": "viewer",
    "GET /api/v1/tenants/{tenant}/sources/{source}/dumps": "viewer",
    "GET /api/v1/tenants/{tenant}/sources/{source}/dumps/{dump}": "viewer",
    "POST /api/v1/tenants/{tenant}/sources/{source}/dumps": "operator",
    "POST /api/v1/tenants/{tenant}/sources/{source}/tables/{database}/{table}/dump": "operator",
    "POST /api/v1/tenants/{tenant}/sources/{source}/dumps/{dump}/pause": "operator",
    "POST /api/v1/tenants/{tenant}/sources/{source}/dumps/{dump}/resume": "operator",
    "POST /api/v1/tenants/{tenant}/sources/{source}/dumps/{dump}/cancel": "operator",
    "POST /api/v1/tenants/{tenant}/sources/{source}/dumps/{dump}/priority": "operator",
    "POST /api/v1/tenants/{tenant}/sources/{source}/dumps/{dump}/limits": "operator",
    "POST /api/v1/tenants/{tenant}/sources/{source}/verifications": "operator",
    "GET /api/v1/tenants/{tenant}/sources/{source}/verification-schedule": "viewer",
    "PUT /api/v1/tenants/{tenant}/sources/{source}/verification-schedule": "operator",
    "DELETE /api/v1/tenants/{tenant}/sources/{source}/verification-schedule": "operator",
    "GET /api/v1/tenants/{tenant}/coverage": "viewer",
    "GET /api/v1/tenants/{tenant}/sources/{source}/coverage": "viewer",
    "POST /api/v1/tenants/{tenant}/sources/{source}/tables/{database}/{table}/repair": "operator",
    "GET /api/v1/lakes": "fleet-viewer",
    "PUT /api/v1/lakes/{lake}": "sink",
    "GET /api/v1/lakes/{lake}/views": "sink",
    "POST /api/v1/lakes/{lake}/forget": "fleet-admin",
    "GET /api/v1/tenants/{tenant}/views": "viewer",
    "POST /api/v1/tenants/{tenant}/views": "operator",
    "GET /api/v1/tenants/{tenant}/views/{view}": "viewer",
    "PUT /api/v1/tenants/{tenant}/views/{view}": "operator",
    "DELETE /api/v1/tenants/{tenant}/views/{view}": "operator",
    "GET /api/v1/tenants/{tenant}/views/{view}/plan": "viewer",
    "POST /api/v1/tenants/{tenant}/view-plans": "viewer",
    "GET /api/v1/tenants/{tenant}/search-indexes": "viewer",
    "POST /api/v1/tenants/{tenant}/sources/{source}/tables/{database}/{table}/search": "reader",
    "GET /api/v1/tenants/{tenant}/sources/{source}/tables/{database}/{table}/changes": "reader",
    "POST /api/v1/tenants/{tenant}/views/{view}/search": "reader",
    "GET /api/v1/tenants/{tenant}/agent-releases": "viewer",
    "POST /api/v1/tenants/{tenant}/agent-releases": "admin",
    "PUT /api/v1/tenants/{tenant}/agent-releases/{release}/packages/{package}": "admin",
    "POST /api/v1/tenants/{tenant}/agent-releases/{release}/complete": "admin",
    "DELETE /api/v1/tenants/{tenant}/agent-releases/{release}": "admin",
    "GET /api/v1/tenants/{tenant}/rollout": "viewer",
    "GET /api/v1/tenants/{tenant}/rollout/agents": "viewer",
    "POST /api/v1/tenants/{tenant}/rollout-plans": "viewer",
    "POST /api/v1/tenants/{tenant}/rollout/start": "operator",
    "POST /api/v1/tenants/{tenant}/rollout/pause": "operator",
    "POST /api/v1/tenants/{tenant}/rollout/resume": "operator",
    "POST /api/v1/tenants/{tenant}/rollout/cancel": "operator",
    "POST /api/v1/tenants/{tenant}/rollout/back": "operator",
    "POST /api/v1/tenants/{tenant}/rollout/skip": "operator",
    "GET /api/v1/login": "nobody",
    "POST /api/v1/session": "nobody",
    "GET /api/v1/session": "anybody",
    "POST /api/v1/session/end": "nobody",
    "POST /api/v1/login-links": "anybody",
    "GET /api/v1/login/provider": "nobody",
    "GET /api/v1/login/provider/callback": "nobody",
    "GET /api/v1/tenants/{tenant}/sources/{source}/configuration": "viewer",
    "POST /api/v1/tenants/{tenant}/sources/{source}/configuration": "admin",
    "POST /api/v1/tenants/{tenant}/sources/{source}/configuration/remove": "admin",
    "POST /api/v1/tenants/{tenant}/fleet/plan": "operator",
    "POST /api/v1/tenants/{tenant}/fleet/apply": "admin",
    "GET /api/v1/tenants/{tenant}/live": "viewer",
    "GET /api/v1/tenants/{tenant}/sources/{source}/events": "viewer",
    "GET /api/v1/tenants/{tenant}/sources/{source}/rules": "viewer",
    "POST /api/v1/tenants/{tenant}/sources/{source}/rules/{rule}/remove": "operator",
    "GET /api/v1/tenants/{tenant}/sources/{source}/operations": "viewer",
    "GET /api/v1/tenants/{tenant}/sources/{source}/operations/{operation}": "viewer",
    "GET /api/v1/problems": "nobody",
    "GET /api/v1/problems/{name}": "nobody",
    "GET /healthz": "nobody",
    "GET /livez": "nobody",
    "GET /readyz": "nobody",
    "GET /metrics": "fleet-viewer",
    "GET /api/v1/openapi.json": "anybody",
    "GET /": "nobody",
    "GET /source": "nobody",
    "GET /tables": "nobody",
    "GET /table": "nobody",
    "GET /views": "nobody",
    "GET /search": "nobody",
    "GET /proof": "nobody",
    "GET /dumps": "nobody",
    "GET /fleet": "nobody",
    "GET /upgrades": "nobody",
    "GET /upgrades.js": "nobody",
    "GET /audit": "nobody",
    "GET /settings": "nobody",
    "GET /login": "nobody",
    "GET /dashboard.css": "nobody",
    "GET /uplot.css": "nobody",
    "GET /uplot.js": "nobody",
    "GET /mark.svg": "nobody",
    "GET /audit.js": "nobody",
    "GET /dumps.js": "nobody",
    "GET /fleet.js": "nobody",
    "GET /live.js": "nobody",
    "GET /login.js": "nobody",
    "GET /orders.js": "nobody",
    "GET /plots.js": "nobody",
    "GET /proof.js": "nobody",
    "GET /search.js": "nobody",
    "GET /search_marks.js": "nobody",
    "GET /search_parts.js": "nobody",
    "GET /settings.js": "nobody",
    "GET /shared.js": "nobody",
    "GET /source.js": "nobody",
    "GET /source_card.js": "nobody",
    "GET /sources.js": "nobody",
    "GET /table.js": "nobody",
    "GET /table_changes.js": "nobody",
    "GET /table_filter.js": "nobody",
    "GET /table_parts.js": "nobody",
    "GET /table_proof.js": "nobody",
    "GET /tables.js": "nobody",
    "GET /views.js": "nobody",
}
#: by caller: what of `LEAST` is open to it, in tenant acme and outside of tenants
OPEN = {
    "nobody": {"nobody"},
    "viewer of acme": {"nobody", "anybody", "viewer"},
    "reader of acme": {"nobody", "anybody", "viewer", "reader"},
    "operator of acme": {"nobody", "anybody", "viewer", "operator"},
    "admin of acme": {"nobody", "anybody", "viewer", "reader", "operator", "admin"},
    "admin of globex": {"nobody", "anybody"},
    "viewer of all": {"nobody", "anybody", "viewer", "fleet-viewer"},
    "reader of all": {"nobody", "anybody", "viewer", "reader", "fleet-viewer"},
    "operator of all": {"nobody", "anybody", "viewer", "operator", "fleet-viewer"},
    "admin of all": set(LEAST.values()),
    "fleet-viewer of all": {"nobody", "anybody", "fleet-viewer"},
    "sink of all": {"nobody", "anybody", "sink"},
}
#: callers that may know of acme
OF_ACME = {name for name, opened in OPEN.items() if "viewer" in opened}


@pytest.fixture
def client(database: Database) -> Iterator[httpx.Client]:
    with serving(database, access=Access()) as url, http_client(url) as client:
        yield client


def ask(client: httpx.Client, route: str, tenant: str, headers: dict[str, str]) -> str:
    """The code of the problem that it ends with; a command's body is one that no route takes."""
    method, path = route.split(" ")
    path = re.sub(r"\{(\w+)\}", lambda name: tenant if name[1] == "tenant" else "nowhere", path)
    body = {} if method == "GET" else {"json": {"nonsense": 1}}
    answer = client.request(method, path, headers=headers, follow_redirects=False, **body)
    return answer.json()["code"] if answer.headers["content-type"] == "application/problem+json" else ""


def test_routes_when_walked_then_each_one_has_a_need_and_stands_in_the_table():
    routes = [f"{method} {route.path}" for router in ROUTERS for route in router.routes for method in route.methods]
    assert len(routes) == len(set(routes)) and set(routes) < set(LEAST)
    assert len(rules_of(ROUTERS)) == sum(len(router.routes) for router in ROUTERS)
    for route in AUDITED:
        assert "write" in inspect.signature(route).parameters, f"{route} is not carried out by `writing`"
    forgotten = APIRouter()
    forgotten.add_api_route("/api/v1/forgotten", lambda: {}, methods=["GET"])
    with pytest.raises(LookupError, match="/api/v1/forgotten"):
        rules_of([forgotten])


def test_routes_when_every_caller_asks_for_each_then_only_those_of_the_table_are_let_through(
    client: httpx.Client, database: Database
):
    shown: dict[str, dict[str, str]] = {"nobody": {}}
    for name in OPEN.keys() - {"nobody"}:
        role, _, tenant = name.partition(" of ")
        shown[name] = made(database, Role(role), None if tenant == "all" else tenant).headers
    for route, least in LEAST.items():
        for name, opened in OPEN.items():
            code = ask(client, route, "acme", shown[name])
            refused = code in ("CALLER_MISSING", "CALLER_UNKNOWN", "ROLE_MISSING", "TENANT_UNKNOWN")
            if least in opened:
                assert not refused, (route, name, code)
            elif name == "nobody":
                assert code == "CALLER_MISSING", (route, name, code)
            else:
                hidden = "{tenant}" in route and name not in OF_ACME
                assert code == ("TENANT_UNKNOWN" if hidden else "ROLE_MISSING"), (route, name, code)
        if route.startswith("GET ") and least != "nobody":
            assert client.head(route.removeprefix("GET ")).status_code == 401
    assert client.get("/api/v1/nowhere").json()["code"] == "PATH_UNKNOWN"
    wrong_method = client.delete("/api/v1/lakes", headers={"content-type": "application/json", "content-length": "0"})
    assert (wrong_method.status_code, wrong_method.headers["allow"]) == (405, "GET, HEAD")


def test_tenant_when_it_is_anothers_then_nothing_tells_it_from_one_that_is_not_there(
    client: httpx.Client, database: Database, registry: SqlRegistry
):
    facts.record_shop(registry)
    stranger = made(database, Role.ADMIN, "globex").headers
    for route in LEAST:
        if "{tenant}" in route:
            method, path = route.split(" ")
            path = path.replace("{source}", "shop").replace("{database}", "shop").replace("{table}", "orders")
            body = {} if method == "GET" else {"json": {}}
            there, absent = (
                client.request(method, path.replace("{tenant}", name), headers=stranger, **body)
                for name in ("acme", "nowhere")
            )
            assert there.status_code == 404
            assert (there.content, there.headers.keys()) == (absent.content, absent.headers.keys())
    answer = client.get("/api/v1/fleet?count_tables=true", headers=stranger).json()
    (globex,) = answer["tenants"]
    assert (globex["tenant"], globex["agents"], globex["sources"], globex["synced_tables"]) == ("globex", 0, 0, 0)
    assert answer["next_cursor"] is None
    names = [
        each["tenant"]
        for each in client.get("/api/v1/fleet", headers=made(database, Role.VIEWER, None).headers).json()["tenants"]
    ]
    assert names == ["acme", "globex"]
    of_fleet = made(database, Role.VIEWER, None)
    owner = made(database, Role.ADMIN).headers
    for other in (of_fleet.id, made(database, Role.VIEWER, "globex").id):
        answer = client.post(f"/api/v1/tenants/acme/api-tokens/{other}/revoke", json={}, headers=owner)
        assert answer.json()["code"] == "API_TOKEN_UNKNOWN"
    assert of_fleet.id not in client.get("/api/v1/tenants/acme/api-tokens", headers=owner).text
    for role in ("sink", "fleet-viewer"):  # no tenant's admin gives what he has not
        body = {"name": "x", "role": role}
        assert client.post("/api/v1/tenants/acme/api-tokens", json=body, headers=owner).status_code == 422
