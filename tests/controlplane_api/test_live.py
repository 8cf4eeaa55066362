"""Answers that are told as they change, over connections that stay."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from menura import http_server
from sqlalchemy import update

from controlplane_api.api import gate, live
from controlplane_api.api.app import Access
from controlplane_api.api.live import Live
from controlplane_api.commits import Commits
from controlplane_api.database import Database
from controlplane_api.identity import api_tokens
from controlplane_api.identity.callers import Role
from controlplane_api.models import ApiToken
from controlplane_api.registry.sql_registry import SqlRegistry
from tests.controlplane_api import facts
from tests.controlplane_api.callers import made
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import LANDING, cut, entry, file, started
from tests.controlplane_api.test_api import SHOP, problem
from tests.stack import http_client, wait_for

ACME = "/api/v1/tenants/acme"
TENANTS = "/api/v1/fleet?limit=1000"


@pytest.fixture(autouse=True)
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks come soon, and of themselves none in the time of a test."""
    monkeypatch.setattr(live, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(live, "COMMIT_SECONDS", 0.02)
    monkeypatch.setattr(live, "REST_SECONDS", 3_600)


@pytest.fixture
def client(database: Database, registry: SqlRegistry) -> Iterator[httpx.Client]:
    facts.record_shop(registry)
    with serving(database) as url, http_client(url) as client:
        yield client


def stream(*addresses: str, tenant: str = ACME) -> str:
    return f"{tenant}/live?{urlencode([('address', address) for address in addresses])}"


def told(lines: Iterator[str]) -> tuple[int, Any]:
    """The next event that has news: the address's number, and the answer; None: there is none in it."""
    data = next(line for line in lines if line.startswith("data: ") and line != "data: {}")
    event = json.loads(data.removeprefix("data: "))
    return event["number"], event.get("answer")


def land(registry: SqlRegistry, number: int) -> None:
    registry.apply_entry(LANDING, entry(number, cut(number)))


def test_answers_when_they_change_then_each_is_told_whole_and_as_a_request_would_be_answered(
    client: httpx.Client, registry: SqlRegistry
) -> None:
    tables = f"{SHOP}/tables?text=ord"
    with client.stream("GET", stream(tables, f"{SHOP}/rules")) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-accel-buffering"] == "no"
        lines = answer.iter_lines()
        first = dict(told(lines) for _ in range(2))
        assert first == {0: client.get(tables).json(), 1: {"rules": []}}
        registry.apply_entry(LANDING, entry(1, cut(1, file("orders", 1_234), start=[started("orders", 0)])))
        number, found = told(lines)
        assert (number, found["tables"][0]["rows"]) == (0, 1_234)
        body = {"tables": {"database": "shop", "table": "*", "future": True}, "start": "oldest"}
        client.post(f"{SHOP}/start", json=body).raise_for_status()
        while number == 0:  # its tables are started too
            number, found = told(lines)
        assert [rule["table"] for rule in found["rules"]] == ["*"]


def test_answers_when_ages_alone_grow_then_nothing_is_told(
    client: httpx.Client, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "REST_SECONDS", 0.01)
    land(registry, 1)
    asked = counted(monkeypatch)
    with client.stream("GET", stream(SHOP)) as answer:
        lines = answer.iter_lines()
        before = told(lines)[1]
        reached = asked[0] + 10
        wait_for("further looks", lambda: asked[0] >= reached)
        assert client.get(SHOP).json()["freshness_us"] > before["freshness_us"]
        land(registry, 2)
        assert told(lines)[1]["committed_cut"] == 2


def test_answers_when_the_clock_alone_changes_them_then_that_is_told_too(
    client: httpx.Client, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "REST_SECONDS", 0.1)
    facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [facts.health()], facts.fresh_us())
    with client.stream("GET", stream(SHOP)) as answer:
        lines = answer.iter_lines()
        assert told(lines)[1]["connected"] is True
        monkeypatch.setattr("controlplane_api.api.presence.PRESENCE_SECONDS", 0)
        monkeypatch.setattr("controlplane_api.api.presence.AHEAD_SECONDS", 0)
        assert told(lines)[1]["connected"] is False


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often routes were asked for readers."""
    number, ask = [0], Live._ask

    async def count(self: Live, followed: live.Followed) -> tuple[int, bytes]:
        number[0] += 1
        return await ask(self, followed)

    monkeypatch.setattr(Live, "_ask", count)
    return number


def test_answers_when_many_wait_for_them_then_one_look_serves_all_and_nobody_holds_a_connection_or_a_turn(
    database: Database, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = 10 * gate.MAX_OF_CALLER
    facts.record_shop(registry)
    land(registry, 1)
    asked = counted(monkeypatch)

    async def scenario() -> None:
        async with AsyncExitStack() as ends:
            client = await ends.enter_async_context(httpx.AsyncClient(base_url=url, timeout=300, limits=httpx.Limits()))
            answers = [await ends.enter_async_context(client.stream("GET", stream(SHOP))) for _ in range(readers)]
            lines = [answer.aiter_lines() for answer in answers]
            for each in lines:
                assert (await told_to(each))["committed_cut"] == 1
            before = asked[0]
            await asyncio.to_thread(land, registry, 2)
            for each in lines:
                assert (await told_to(each))["committed_cut"] == 2
            assert asked[0] - before < readers / 4
            assert (await client.get(SHOP)).json()["committed_cut"] == 2
            await asyncio.to_thread(wait_for, "an idle pool", lambda: database.engine.pool.checkedout() <= 1)  # type: ignore[attr-defined]

    with serving(database) as url:
        asyncio.run(scenario())


async def told_to(lines: Any) -> Any:
    async for line in lines:
        if line.startswith("data: ") and line != "data: {}":
            return json.loads(line.removeprefix("data: "))["answer"]
    raise AssertionError("the stream has ended")


def test_answers_when_they_are_of_another_tenant_then_nobody_is_told_of_them_or_that_they_change(
    database: Database, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "BEAT_SECONDS", 0.05)
    facts.record_shop(registry)
    registry.record_agent(facts.agent_seen("globex"))
    viewer = made(database, Role.VIEWER)
    with serving(database, access=Access()) as url, http_client(url) as client:
        client.headers.update(viewer.headers)
        globex = "/api/v1/tenants/globex"
        problem(client.get(stream(f"{globex}/fleet", tenant=globex)), 404, "TENANT_UNKNOWN")
        encoded = "/api/v1/tenants/glob%65x/fleet"
        for address in (f"{globex}/fleet", encoded, "/api/v1/session", stream(SHOP), "/api/v1/no"):
            problem(client.get(stream(address)), 422, "REQUEST_INVALID")
        problem(client.get(stream(f"{ACME}/audit")), 403, "ROLE_MISSING")
        with client.stream("GET", stream(TENANTS, f"{ACME}/fleet")) as answer:
            lines = answer.iter_lines()
            first = dict(told(lines) for _ in range(2))
            assert [each["tenant"] for each in first[0]["tenants"]] == ["acme"]
            registry.record_agent(facts.agent_seen("initech"))
            registry.record_agent(facts.agent_seen("globex", ("shop", "more")))
            for _ in range(3):
                assert next(line for line in lines if line.startswith("data: ")) == "data: {}"
            registry.record_agent(facts.agent_seen(sources=("shop", "another")))
            second = dict(told(lines) for _ in range(2))
            assert [each["source"] for each in second[1]["sources"]] == ["another", "shop"]


@pytest.mark.parametrize("by", ["token", "session", "role"])
def test_answers_when_their_reader_is_known_no_more_or_has_another_role_then_his_stream_ends(
    database: Database, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(live, "CHECK_SECONDS", 0.05)
    facts.record_shop(registry)
    one, other = made(database, Role.ADMIN), made(database, Role.ADMIN)
    with serving(database, access=Access()) as url, http_client(url) as client:
        opened = client.post("/api/v1/session", json={"token": one.token})
        shown = one.headers if by == "token" else {"cookie": opened.headers["set-cookie"].split(";")[0]}
        with (
            client.stream("GET", stream(SHOP), headers=shown) as answer,
            client.stream("GET", stream(SHOP), headers=other.headers) as stays,
        ):
            lines, others = answer.iter_lines(), stays.iter_lines()
            told(lines)
            told(others)
            with database.write() as connection:
                if by == "role":
                    connection.execute(update(ApiToken).where(ApiToken.token == one.id).values(role=Role.VIEWER))
                else:
                    api_tokens.revoke(connection, "acme", one.id, facts.T0)
            assert not [line for line in lines if "answer" in line]
            land(registry, 1)
            assert told(others)[1]["committed_cut"] == 1


def test_answers_when_nobody_can_say_who_is_known_then_streams_end(
    database: Database, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "CHECK_SECONDS", 0.05)
    facts.record_shop(registry)
    with serving(database) as url, http_client(url) as client, client.stream("GET", stream(SHOP)) as answer:
        lines = answer.iter_lines()
        told(lines)
        with database.write() as connection:
            connection.exec_driver_sql("ALTER TABLE web_session RENAME TO gone")
        for _ in lines:
            pass


def test_streams_when_the_server_stops_then_they_end_at_once_and_whole(
    database: Database, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "STOP_SECONDS", 300)
    facts.record_shop(registry)
    rest: list[str] = []
    with http_client("http://127.0.0.1") as client:
        with serving(database) as url:
            followed = [client.stream("GET", f"{url}{path}") for path in (stream(SHOP), f"{SHOP}/events")]
            readers = []
            for each in followed:
                lines = each.__enter__().iter_lines()
                next(lines)
                readers.append(threading.Thread(target=lambda lines=lines: rest.extend([*lines, "end"])))
                readers[-1].start()
        for reader in readers:
            reader.join()
        for each in followed:
            each.__exit__(None, None, None)
    assert rest.count("end") == len(followed)


def test_answers_when_a_route_refuses_or_gives_too_much_then_its_reader_is_told_to_ask(
    client: httpx.Client, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = SHOP.replace("shop", "other")
    with client.stream("GET", stream(other)) as answer:
        lines = answer.iter_lines()
        assert told(lines) == (0, None)
        registry.record_agent(facts.agent_seen(sources=("shop", "other")))
        assert told(lines)[1]["source"] == "other"
        monkeypatch.setattr(live, "MAX_ANSWER_BYTES", 10)
        facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [facts.health("other")], facts.fresh_us())
        assert told(lines) == (0, None)


def test_streams_when_a_caller_has_as_many_as_there_may_be_then_a_further_one_is_refused(
    database: Database, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_STREAMS", 3)
    facts.record_shop(registry)
    one, other = made(database, Role.VIEWER), made(database, Role.VIEWER)
    with serving(database, access=Access()) as url, http_client(url) as client:
        with client.stream("GET", stream(SHOP), headers=one.headers) as answer:
            lines = answer.iter_lines()
            told(lines)
            problem(client.get(stream(SHOP), headers=one.headers), 429, "STREAMS_TOO_MANY")
            assert client.head(stream(SHOP), headers=other.headers).status_code == 200
        wait_for("its end", lambda: client.head(stream(SHOP), headers=one.headers).status_code == 200)


def test_commits_when_somebody_commits_then_the_mark_is_another_one_and_else_the_same(
    database: Database, registry: SqlRegistry
) -> None:
    commits = Commits(database)
    first = commits.mark()
    assert commits.mark() == first
    with database.read() as connection:
        connection.exec_driver_sql("SELECT 1 FROM source").all()
    assert commits.mark() == first
    facts.record_shop(registry)
    assert commits.mark() != first
    commits.close()
