"""Searches by REST: who may, whose rows, what the audit log has of them, and what is said where none can be made."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from controlplane_api.api import gate, search_service
from controlplane_api.api.app import Access
from controlplane_api.api.search_service import SearchService
from controlplane_api.api.views import SearchIndexPage
from controlplane_api.database import Database
from controlplane_api.errors import SearchUnusable
from controlplane_api.identity import audit
from controlplane_api.identity.callers import Role
from controlplane_api.registry.sql_registry import SqlRegistry
from spark_sink.search import lag, service
from tests.controlplane_api import facts
from tests.controlplane_api.callers import made
from tests.controlplane_api.commands import menura
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.test_api_tls import write_certificate
from tests.spark_sink.landing import delete, insert, update
from tests.spark_sink.search_shop import LAST_ID, ORDERS, Shop, answering, order
from tests.stack import Process, http_client, wait_for

OF_TABLE = "/api/v1/tenants/{}/sources/shop/tables/shop/orders/search"
OF_VIEW = "/api/v1/tenants/{}/views/orders_of_customers/search"
CHANGES = "/api/v1/tenants/{}/sources/shop/tables/shop/orders/changes"
INDEXES = "/api/v1/tenants/{}/search-indexes"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than a service has."""
    monkeypatch.setattr(lag, "WAIT_SECONDS", 300)
    monkeypatch.setattr(search_service, "ANSWER_SECONDS", 300)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    shop = Shop(tmp_path)
    shop.fill()
    shop.index()
    return shop


@contextmanager
def searching(database: Database, url: str | None) -> Iterator[httpx.Client]:
    """The API, which asks the service at `url`."""
    access = Access(search=None if url is None else SearchService(url))
    with serving(database, access=access) as api, http_client(api) as client:
        yield client


@pytest.fixture
def client(database: Database, shop: Shop) -> Iterator[httpx.Client]:
    with (
        answering(service.SearchService(shop.indexes, str(shop.lake.folder), timeout_seconds=300)) as url,
        searching(database, url) as client,
    ):
        yield client


def problem(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    facts = answer.json()
    assert facts["type"] and facts["status"] == answer.status_code
    assert facts["found"] and facts["remedy"]
    return answer.status_code, facts["code"]


def searched(database: Database, tenant: str = "acme") -> list[tuple[str, str, str, str]]:
    with database.read() as connection:
        rows = audit.search(connection, tenant, 100).rows
    return [(row.actor, row.action, row.found, row.refused) for row in rows]


def test_a_search_when_a_reader_asks_then_rows_of_table_and_view_come_with_facets_and_the_lag(
    client: httpx.Client, database: Database
) -> None:
    headers = made(database, Role.READER).headers
    body = {"text": "bicycle", "filters": ["status=paid"], "facets": ["gift"], "limit": 3}
    answer = client.post(OF_TABLE.format("acme"), json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    orders = [order(number) for number in range(1, 41)]
    paid = [each for each in orders if each["status"] == "paid" and "bicycle" in str(each["note"])]
    assert (found["total"], len(found["rows"]), found["key"]) == (len(paid), 3, ["id"])
    assert (found["cut"], found["lake_cut"], found["behind_us"], found["unknown"]) == (1, 1, 0, "")
    assert [each["column"] for each in found["facets"]] == ["gift"]
    body = {"text": "kraków", "filters": ["total>=20.00"], "limit": 100}
    joined = client.post(OF_VIEW.format("acme"), json=body, headers=headers).json()
    dear = [each for each in orders if each["customer_id"] == 3 and each["total"] >= 20]
    assert joined["total"] == len(joined["rows"]) == len(dear) > 0
    assert {each["customer"] for each in joined["rows"]} == {"Zofia Żółkiewska"}
    last = client.post(OF_TABLE.format("acme"), json={"filters": [f"id={LAST_ID}"]}, headers=headers).json()
    assert last["rows"][0]["id"] == str(LAST_ID)
    indexes = client.get(INDEXES.format("acme"), headers=headers).json()
    shown = [(each["table"], each["view"], each["rows"], each["behind_us"]) for each in indexes["indexes"]]
    assert shown == [("orders", "", 40, 0), ("", "orders_of_customers", 40, 0)]
    page = client.get(INDEXES.format("acme"), params={"limit": 1}, headers=headers).json()
    after = client.get(INDEXES.format("acme"), params={"cursor": page["next_cursor"]}, headers=headers).json()
    assert page["indexes"] + after["indexes"] == indexes["indexes"]
    assert after["next_cursor"] is None


def test_rows_when_a_role_does_not_read_them_then_none_leaves_and_what_was_refused_is_told(
    client: httpx.Client, database: Database
) -> None:
    for role in (Role.VIEWER, Role.OPERATOR):
        shown = made(database, role)
        assert client.get(INDEXES.format("acme"), headers=shown.headers).status_code == 200
        for path in (OF_TABLE, OF_VIEW):
            answer = client.post(path.format("acme"), json={"text": "red"}, headers=shown.headers)
            assert problem(answer) == (403, "ROLE_MISSING")
        assert problem(client.get(CHANGES.format("acme"), headers=shown.headers)) == (403, "ROLE_MISSING")
    assert {entry[3] for entry in searched(database)} == {"ROLE_MISSING"}
    assert problem(client.post(OF_TABLE.format("acme"), json={}))[0] == 401


def test_a_tenant_when_its_reader_searches_then_no_index_of_another_is_reached(
    client: httpx.Client, database: Database
) -> None:
    """The other tenant has tables of the same names, and no index."""
    stranger = made(database, Role.READER, "globex").headers
    for path in (OF_TABLE, OF_VIEW, INDEXES):
        method = "GET" if path == INDEXES else "POST"
        there, absent = (
            client.request(method, path.format(name), headers=stranger, **({} if method == "GET" else {"json": {}}))
            for name in ("acme", "nowhere")
        )
        assert problem(there) == (404, "TENANT_UNKNOWN")
        assert there.content == absent.content
    for path in (OF_TABLE, OF_VIEW):
        own = client.post(path.format("globex"), json={}, headers=stranger)
        assert problem(own) == (404, "SEARCH_INDEX_UNKNOWN")
        assert "indexes" not in own.json()["found"], "the service's folders are nobody's business"
    assert client.get(INDEXES.format("globex"), headers=stranger).json()["indexes"] == []
    ways = ("shop/tables/..%2F..%2F..%2Facme%2Fshop%2Fshop/orders", "..%2Facme%2Fshop/tables/shop/orders",
            "~views/tables/views/orders_of_customers")  # fmt: skip
    for way in ways:
        answer = client.post(f"/api/v1/tenants/globex/sources/{way}/search", json={}, headers=stranger)
        assert problem(answer)[0] in (404, 422), way
    both = made(database, Role.READER, None).headers
    assert client.post(OF_TABLE.format("acme"), json={}, headers=both).status_code == 200


def test_changes_when_a_reader_asks_then_the_newest_come_with_their_values_and_the_audit_log_has_who_was_given_them(
    client: httpx.Client, database: Database
) -> None:
    shown = made(database, Role.READER)
    for _ in range(2):
        answer = client.get(CHANGES.format("acme"), params={"limit": 2}, headers=shown.headers)
        assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["cut"], found["left_out"], found["shortened"]) == (1, 0, 0)
    assert [(each["op"], each["key"], each["before"]) for each in found["changes"]] == [
        ("c", {"id": str(LAST_ID)}, None),
        ("c", {"id": "39"}, None),
    ]
    assert found["changes"][1]["after"]["total"] == str(order(39)["total"])
    assert searched(database) == [
        (f"token {shown.id} (reader-of-tests)", "changes", "sources/shop/tables/shop/orders/changes", "")
    ]
    stranger = made(database, Role.READER, "globex").headers
    assert problem(client.get(CHANGES.format("acme"), headers=stranger)) == (404, "TENANT_UNKNOWN")
    own = client.get(CHANGES.format("globex"), headers=stranger)
    assert problem(own) == (404, "RECENT_CHANGES_UNKNOWN")
    assert str(found["cut"]) not in own.json()["found"] and "/lake" not in own.json()["found"]
    for limit in (0, 51, "many"):
        answer = client.get(CHANGES.format("acme"), params={"limit": limit}, headers=shown.headers)
        assert problem(answer) == (422, "REQUEST_INVALID")


def test_changes_when_the_command_asks_for_them_then_each_is_a_line_with_what_differs(
    client: httpx.Client, database: Database, shop: Shop, tmp_path: Path
) -> None:
    shop.cut((ORDERS, [update(order(3), order(3, status="late")), delete(**order(5)), insert(**order(41))]))
    token = tmp_path / "token"
    token.write_text(made(database, Role.READER).token)
    environment = {"MENURA_API": str(client.base_url), "MENURA_API_TOKEN_FILE": str(token), "MENURA_TENANT": "acme"}
    done = menura("table", "changes", "shop", "shop.orders", "--limit", "3", **environment)
    assert done.returncode == 0, done.stderr
    came, went, changed = [line for line in done.stdout.splitlines() if "id=" in line]
    assert "inserted" in came and "id=41" in came and f"total={order(41)['total']}" in came
    assert "deleted" in went and "id=5" in went
    assert "updated" in changed and f"status: {order(3)['status']} → late" in changed and "note" not in changed
    found = json.loads(menura("table", "changes", "shop", "shop.orders", "--json", **environment).stdout)
    assert [each["op"] for each in found["changes"][:4]] == ["c", "d", "u", "c"]
    unknown = menura("table", "changes", "shop", "shop.none", **environment)
    assert unknown.returncode == 25 and "RECENT_CHANGES_UNKNOWN" in unknown.stderr


def test_the_audit_log_when_somebody_searches_then_says_who_and_what_once_in_a_while_and_never_for_which_words(
    client: httpx.Client, database: Database
) -> None:
    first, second = made(database, Role.READER), made(database, Role.READER)
    for shown in (first, second):
        for text in ("a", "ad", "ada"):
            answer = client.post(OF_VIEW.format("acme"), json={"text": text}, headers=shown.headers)
            assert answer.status_code == 200
    client.post(OF_TABLE.format("acme"), json={"filters": ["note=Lovelace"]}, headers=first.headers)
    assert searched(database) == [
        (f"token {first.id} (reader-of-tests)", "search", "sources/shop/tables/shop/orders/search", ""),
        (f"token {second.id} (reader-of-tests)", "search", "views/orders_of_customers/search", ""),
        (f"token {first.id} (reader-of-tests)", "search", "views/orders_of_customers/search", ""),
    ]


def test_rows_when_the_audit_log_can_not_be_written_then_none_leaves(
    client: httpx.Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = made(database, Role.READER).headers
    with database.write() as connection:
        connection.exec_driver_sql("ALTER TABLE audit RENAME TO away")
    for _ in range(2):
        answer = client.post(OF_TABLE.format("acme"), json={}, headers=shown)
        assert answer.status_code >= 500 and "rows" not in answer.json()
    with database.write() as connection:
        connection.exec_driver_sql("ALTER TABLE away RENAME TO audit")
    assert client.post(OF_TABLE.format("acme"), json={}, headers=shown).status_code == 200
    assert len(searched(database)) == 1


def test_a_search_when_it_can_not_be_answered_then_the_problem_says_what_to_change(
    client: httpx.Client, database: Database
) -> None:
    shown = made(database, Role.READER).headers
    for body, said in (
        ({"text": '"red'}, "a quotation mark without its other one"),
        ({"filters": ["total=much"]}, "total"),
        ({"facets": ["none"]}, "a column that the table has not"),
        ({"filters": ["placed_at=yesterday"]}, "no timestamp"),
    ):
        answer = client.post(OF_TABLE.format("acme"), json=body, headers=shown)
        assert problem(answer) == (422, "SEARCH_REFUSED"), body
        assert said in answer.json()["found"]
    for body in ({"limit": 101}, {"text": "x" * 1_001}, {"filters": [""] * 33}, {"texts": ""}, {"text": 1}):
        assert problem(client.post(OF_TABLE.format("acme"), json=body, headers=shown)) == (422, "REQUEST_INVALID")
    lone = json.dumps({"text": "\ud800"}).encode()
    answer = client.post(OF_TABLE.format("acme"), content=lone, headers={**shown, "content-type": "application/json"})
    assert answer.status_code == 422
    absent = "/api/v1/tenants/acme/sources/shop/tables/shop/none/search"
    assert problem(client.post(absent, json={}, headers=shown)) == (404, "SEARCH_INDEX_UNKNOWN")
    assert searched(database) == [], "no row has left"


def test_an_api_without_a_search_service_when_it_is_asked_then_says_how_there_is_one(database: Database) -> None:
    shown = made(database, Role.READER).headers
    with searching(database, None) as client:
        for path in (OF_TABLE, OF_VIEW):
            answer = client.post(path.format("acme"), json={}, headers=shown)
            assert problem(answer) == (409, "SEARCH_MISSING")
            assert "menura search serve" in answer.json()["remedy"]
        assert problem(client.get(INDEXES.format("acme"), headers=shown)) == (409, "SEARCH_MISSING")


@contextmanager
def odd_service(status: int, body: bytes, waits: threading.Event | None = None) -> Iterator[str]:
    """What listens where the service should: it answers this, once it may."""

    async def answer(_: Request) -> Response:
        while waits is not None and not waits.is_set():
            await asyncio.sleep(0.01)
        return Response(body, status, media_type="application/json")

    class Odd:
        app = Starlette(routes=[Route("/{path:path}", answer, methods=["POST"])])

    with answering(Odd()) as url:  # type: ignore[arg-type]
        yield url


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"{}", "not of the form"),
        (200, b"[" * 100_000, "not of the form"),
        (200, b"x" * ((8 << 20) + 1), "more than 8388608 bytes"),
        (404, b'{"detail": "another server"}', "status 404"),
        (401, b'{"code": "SEARCH_CALLER_REFUSED"}', "status 401 and SEARCH_CALLER_REFUSED"),
        (302, b"", "status 302"),
        (500, b"\xff", "status 500"),
    ],
)
def test_a_service_when_it_says_what_is_not_understood_then_the_search_is_to_be_repeated_later(
    database: Database, status: int, body: bytes, said: str
) -> None:
    shown = made(database, Role.READER).headers
    with odd_service(status, body) as url, searching(database, url) as client:
        answer = client.post(OF_TABLE.format("acme"), json={}, headers=shown)
        assert problem(answer) == (503, "SEARCH_AWAY")
        assert answer.headers["retry-after"] == "5"
        assert said in answer.json()["found"]
    assert searched(database) == []


def test_a_search_when_it_took_the_service_too_long_then_it_is_the_searchs_fault(database: Database) -> None:
    shown = made(database, Role.READER).headers
    late = {"code": "SEARCH_TOO_LONG", "found": "it took more than 10 s", "remedy": "Ask for less"}
    with odd_service(422, json.dumps(late).encode()) as url, searching(database, url) as client:
        answer = client.post(OF_TABLE.format("acme"), json={}, headers=shown)
        assert problem(answer) == (422, "SEARCH_REFUSED")
        assert "more than 10 s" in answer.json()["found"]


def test_a_service_when_nobody_listens_or_it_is_silent_then_no_request_waits_for_ever(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, let_go = made(database, Role.READER).headers, threading.Event()
    with searching(database, "http://127.0.0.1:1") as client:
        assert problem(client.post(OF_TABLE.format("acme"), json={}, headers=shown)) == (503, "SEARCH_AWAY")
    monkeypatch.setattr(search_service, "ANSWER_SECONDS", 0.05)
    with odd_service(200, b"", let_go) as url, searching(database, url) as client:
        answer = client.post(OF_TABLE.format("acme"), json={}, headers=shown)
        assert problem(answer) == (503, "SEARCH_AWAY")
        assert "has not answered within 0.05 s" in answer.json()["found"]
        let_go.set()


def test_searches_when_many_of_a_tenant_wait_then_it_has_half_of_the_turns_and_another_tenant_goes_on(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_service, "MOST_AT_ONCE", 4)
    monkeypatch.setattr(search_service, "MAX_ANSWER_BYTES", 0)
    let_go, answers = threading.Event(), list[httpx.Response]()
    service_of = SearchService
    with odd_service(200, b"x", let_go) as url:
        service = service_of(url)
        with serving(database, access=Access(search=service)) as api, http_client(api) as client:

            def ask(tenant: str) -> None:
                answers.append(client.post(OF_TABLE.format(tenant), json={}, headers=shown[tenant]))

            shown = {name: made(database, Role.READER, name).headers for name in ("acme", "globex")}
            threads = [threading.Thread(target=ask, args=(name,)) for name in ("acme", "acme", "globex")]
            for thread in threads:
                thread.start()
            wait_for("all to wait", lambda: service._running == {"acme": 2, "globex": 1}, every=0.01)
            busy = client.post(OF_TABLE.format("acme"), json={}, headers=shown["acme"])
            assert problem(busy) == (503, "SEARCH_BUSY")
            assert busy.headers["retry-after"] == "1"
            let_go.set()
            for thread in threads:
                thread.join()
            assert [problem(answer) for answer in answers] == [(503, "SEARCH_AWAY")] * 3
            assert not service._running


def test_searches_when_a_reader_has_all_that_his_tenant_may_then_its_other_requests_are_answered(
    database: Database, registry: SqlRegistry
) -> None:
    facts.record_shop(registry, "orders")
    let_go, shown, most = threading.Event(), made(database, Role.READER).headers, search_service.MOST_AT_ONCE // 2
    assert most >= gate.MAX_OF_TENANT
    with odd_service(200, b"", let_go) as url:
        service = SearchService(url)
        with serving(database, access=Access(search=service)) as api, http_client(api) as client:
            asked = [("POST", OF_TABLE), ("POST", OF_VIEW), ("GET", CHANGES), ("GET", INDEXES)] * (most // 4)
            threads = [threading.Thread(target=client.request, args=(method, path.format("acme")),
                                        kwargs={"headers": shown, **({"json": {}} if method == "POST" else {})})
                       for method, path in asked]  # fmt: skip
            for thread in threads:
                thread.start()
            try:
                wait_for("all to wait", lambda: service._running == {"acme": most}, every=0.01)
                assert client.get("/api/v1/tenants/acme/sources", headers=shown, timeout=300).status_code == 200
                assert service._running == {"acme": most}
            finally:
                let_go.set()
                for thread in threads:
                    thread.join()


def test_a_search_when_its_reader_is_written_down_then_it_has_its_turn_still() -> None:
    with odd_service(200, b'{"indexes": [], "next": null}') as url:
        service, seen = SearchService(url), []

        async def before() -> None:
            seen.append(dict(service._running))

        asyncio.run(service.ask(SearchIndexPage, "acme", "/v1/indexes", {}, before))
        assert seen == [{"acme": 1}] and not service._running


def test_an_api_when_its_search_service_is_elsewhere_then_comes_by_tls_with_its_token(
    database: Database, shop: Shop, tmp_path: Path
) -> None:
    token, pem = tmp_path / "token", tmp_path / "api.pem"
    token.write_text("secret")
    write_certificate(tmp_path, "search")
    arguments = [
        "search",
        "serve",
        "--folder",
        str(shop.indexes),
        "--listen",
        "127.0.0.1:0",
        "--token-file",
        str(token),
    ]
    arguments += ["--tls-certificate", str(pem), "--tls-key", str(tmp_path / "api.key"), "--timeout-seconds", "300"]
    shown = made(database, Role.READER).headers
    with Process(arguments, tmp_path / "serve.log") as serve:
        said = wait_for("its port", lambda: "searches on" in (text := serve.log.read_text()) and text)
        url = said.split("searches on ")[1].split()[0].replace("127.0.0.1", "localhost")
        known = SearchService(url, token, pem)
        with serving(database, access=Access(search=known)) as api, http_client(api) as client:
            assert client.post(OF_TABLE.format("acme"), json={}, headers=shown).json()["total"] == 40
            token.write_text("two words")
            assert client.post(OF_TABLE.format("acme"), json={}, headers=shown).status_code == 500
        stranger = SearchService(url, None, pem)
        with serving(database, access=Access(search=stranger)) as api, http_client(api) as client:
            assert problem(client.post(OF_TABLE.format("acme"), json={}, headers=shown)) == (503, "SEARCH_AWAY")
        with serving(database, access=Access(search=SearchService(url))) as api, http_client(api) as client:
            assert "can't be reached" in client.post(OF_TABLE.format("acme"), json={}, headers=shown).json()["found"]


def test_settings_of_a_search_service_when_they_do_not_fit_then_the_api_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("")
    for arguments in (
        ("ftp://search",), ("http://",), ("http://search.example:7090",), ("https://search/?x",),
        ("http://127.0.0.1:7090", tmp_path / "none"), ("http://127.0.0.1:7090", tmp_path / "token"),
        ("https://search", None, tmp_path / "none"), ("https://search", None, tmp_path / "token"),
    ):  # fmt: skip
        with pytest.raises(SearchUnusable):
            SearchService(*arguments)
    assert order(40)["id"] == LAST_ID
