"""Bodies of requests that do not come to their end: whom they keep from being answered, and how many there may be."""

import socket
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
from menura import http_server

from controlplane_api.api import bodies, gate
from controlplane_api.api.app import Access
from controlplane_api.database import Database
from controlplane_api.identity.callers import Role
from controlplane_api.registry.sql_registry import SqlRegistry
from tests.controlplane_api import facts
from tests.controlplane_api.callers import Shown, made
from tests.controlplane_api.conftest import serving
from tests.stack import http_client, wait_for

SOURCES = "/api/v1/tenants/{}/sources"
START = "/api/v1/tenants/acme/sources/shop/tables/shop/orders/start"
PLAN = "/api/v1/tenants/{}/view-plans"


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """No body is too late while a test runs."""
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 600)


def begun(url: str, shown: Shown, tenant: str = "acme", length: int = 100) -> socket.socket:
    """A request of whose body one byte has come; what the server says first has come too."""
    parts = urlsplit(url)
    connection = socket.create_connection((str(parts.hostname), int(parts.port or 0)), timeout=300)
    head = (
        f"POST {PLAN.format(tenant)} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {shown.token}\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n{{"
    )
    connection.sendall(head.encode())
    return connection


def is_read(connection: socket.socket) -> bool:
    """Whether the server waits for the rest; else it has refused the request."""
    with connection.makefile("rb") as answer:
        status = answer.readline().split()[1]
    assert status in (b"100", b"429"), status
    return status == b"100"


def test_a_tenant_when_bodies_of_its_viewer_do_not_come_then_both_he_and_its_operator_are_answered(
    database: Database, registry: SqlRegistry
) -> None:
    facts.record_shop(registry, "orders")
    viewer, operator = made(database, Role.VIEWER), made(database, Role.OPERATOR)
    with serving(database, access=Access()) as url, http_client(url) as client, ExitStack() as slow:
        for _ in range(gate.MAX_OF_TENANT):
            assert is_read(slow.enter_context(begun(url, viewer)))
        assert client.get(SOURCES.format("acme"), headers=viewer.headers, timeout=300).status_code == 200
        started = client.post(START, json={"start": "now"}, headers=operator.headers, timeout=300)
        assert started.status_code == 200, started.text


@pytest.mark.parametrize(("limit", "most", "length"), [("MAX_BODIES", 6, 100), ("MAX_BYTES", 600, 100)])
def test_bodies_when_a_caller_has_all_that_he_may_then_he_is_refused_and_others_are_read(
    database: Database, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, length: int
) -> None:
    monkeypatch.setattr(bodies, limit, most)
    facts.record_shop(registry, "orders")
    viewer, another, stranger = (made(database, Role.VIEWER, name) for name in ("acme", "acme", "globex"))
    with serving(database, access=Access()) as url, http_client(url) as client:
        with ExitStack() as slow:
            came = [is_read(slow.enter_context(begun(url, viewer, length=length))) for _ in range(3)]
            assert came == [True, True, False]
            refused = client.post(PLAN.format("acme"), json={}, headers=viewer.headers)
            assert (refused.status_code, refused.json()["code"]) == (429, "BODIES_TOO_MANY")
            assert refused.headers["retry-after"] == "1"
            assert client.get(SOURCES.format("acme"), headers=viewer.headers).status_code == 200
            for shown, tenant in ((another, "acme"), (stranger, "globex")):
                assert is_read(slow.enter_context(begun(url, shown, tenant, length)))
        wait_for(
            "their places", lambda: client.post(PLAN.format("acme"), json={}, headers=viewer.headers).status_code == 422
        )


def test_a_body_when_it_comes_in_pieces_then_its_route_has_it_whole(database: Database, registry: SqlRegistry) -> None:
    facts.record_shop(registry, "orders")
    sent = b'{"start": "now"}'
    with serving(database) as url, http_client(url) as client:
        headers = {"content-type": "application/json", "content-length": str(len(sent))}
        answer = client.post(START, content=(bytes([each]) for each in sent), headers=headers)
        assert answer.status_code == 200, answer.text
