"""Events of a source as they are committed, over a connection that stays."""

import socket
from collections.abc import Iterator
from itertools import islice
from urllib.parse import urlsplit

import httpx
import pytest

from controlplane_api.api import event_stream
from controlplane_api.api.app import Access
from controlplane_api.database import Database
from controlplane_api.identity import api_tokens
from controlplane_api.identity.callers import Role
from controlplane_api.registry import table_events
from controlplane_api.registry.sql_registry import SqlRegistry
from tests.controlplane_api import facts
from tests.controlplane_api.callers import made
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import LANDING, cut, entry
from tests.controlplane_api.test_api import SHOP, problem
from tests.stack import http_client, wait_for

EVENTS = f"{SHOP}/events"


@pytest.fixture
def client(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    monkeypatch.setattr(event_stream, "LOOK_SECONDS", 0.05)
    with serving(database) as url, http_client(url) as client:
        yield client


def land(registry: SqlRegistry, number: int, *numbers: int) -> None:
    """Cut `number`, with an event of each of these numbers."""
    told = [facts.event(("orders", "items")[gsn % 2], gsn) for gsn in numbers]
    registry.apply_entry(LANDING, entry(number, cut(number, events=told)))


def ids(lines: Iterator[str], count: int) -> list[int]:
    return [int(line[4:]) for line in islice((line for line in lines if line.startswith("id: ")), count)]


def test_events_when_followed_then_each_comes_once_in_order_also_after_a_restart(
    client: httpx.Client, registry: SqlRegistry, database: Database
) -> None:
    facts.record_shop(registry)
    land(registry, 1, 3, 4)
    with client.stream("GET", EVENTS) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        next(lines)
        land(registry, 2, 12, 13)
        land(registry, 3, 25)
        assert ids(lines, 3) == [12, 13, 25]
    with serving(database) as url, http_client(url) as other:
        for last, then in (("0", [3, 4, 12, 13, 25]), ("12", [13, 25])):
            with other.stream("GET", EVENTS, headers={"last-event-id": last}) as answer:
                assert ids(answer.iter_lines(), len(then)) == then
    head = client.head(EVENTS)
    assert (head.status_code, head.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    problem(client.get(EVENTS.replace("acme", "globex")), 404, "SOURCE_UNKNOWN")
    problem(client.get(EVENTS, headers={"last-event-id": "-1"}), 422, "REQUEST_INVALID")


def test_events_when_some_are_forgotten_then_the_stream_says_so_first(
    client: httpx.Client, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_events, "KEPT_EVENTS", 2)
    monkeypatch.setattr("controlplane_api.api.event_queries.KEPT_EVENTS", 2)
    facts.record_shop(registry)
    land(registry, 1, 2, 4, 6)
    for last, told in (("1", True), ("4", False)):
        with client.stream("GET", EVENTS, headers={"last-event-id": last}) as answer:
            lines = answer.iter_lines()
            shown = [line for line in islice(lines, 4) if line]
            assert ("event: forgotten" in shown) == told


def test_events_when_readers_leave_or_are_slow_then_their_streams_end_and_others_begin(
    client: httpx.Client, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "MAX_STREAMS", 1)
    monkeypatch.setattr(event_stream, "SEND_SECONDS", 0.5)
    facts.record_shop(registry)
    parts = urlsplit(str(client.base_url))
    with socket.create_connection((str(parts.hostname), int(parts.port or 0)), timeout=300) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        slow.sendall(f"GET {EVENTS} HTTP/1.1\r\nHost: 127.0.0.1\r\nLast-Event-ID: 0\r\n\r\n".encode())
        assert slow.recv(12) == b"HTTP/1.1 200"
        problem(client.get(EVENTS), 429, "STREAMS_TOO_MANY")
        statement = "ALTER TABLE orders " + "x" * 60_000
        many = [facts.unlogged("orders", gsn, statement) for gsn in range(2, 102)]
        registry.apply_entry(LANDING, entry(1, cut(30, events=many)))
        wait_for("the slow reader's stream to end", lambda: client.head(EVENTS).status_code == 200)
    for _ in range(3):
        with client.stream("GET", EVENTS) as answer:
            assert answer.status_code == 200
        wait_for("the stream to end", lambda: client.head(EVENTS).status_code == 200)


@pytest.mark.parametrize("by", ["token", "session"])
def test_events_when_their_reader_is_known_no_more_then_its_stream_ends(
    database: Database, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(event_stream, "LOOK_SECONDS", 0.05)
    facts.record_shop(registry)
    viewer = made(database, Role.VIEWER)
    with serving(database, access=Access()) as url, http_client(url) as client:
        opened = client.post("/api/v1/session", json={"token": viewer.token})
        shown = viewer.headers if by == "token" else {"cookie": opened.headers["set-cookie"].split(";")[0]}
        with client.stream("GET", EVENTS, headers=shown) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("retry")
            land(registry, 1, 3)
            assert ids(lines, 1) == [3]
            with database.write() as connection:
                api_tokens.revoke(connection, "acme", viewer.id, facts.T0)
            assert not [line for line in lines if line.startswith("id: ")]
        problem(client.get(EVENTS, headers=shown), 401, "CALLER_UNKNOWN")
