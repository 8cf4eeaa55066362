"""The search service over HTTP: what it answers, to whom, how much at once, and how far behind the lake that is."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from spark_sink.errors import TableNotInLake
from spark_sink.export.rows import Shape
from spark_sink.search import lag, service
from spark_sink.search.index import TABLE_FILE
from spark_sink.search.index_query import FolderIndex
from spark_sink.search.lag import Lags, SourceSeen
from spark_sink.search.questions import MAX_BODY_BYTES, MOST_ROW_BYTES, MOST_VALUE_CHARS
from spark_sink.search.recent_changes import MOST_CHANGES, RecentChanges
from spark_sink.search.searching import open_search
from spark_sink.search.service import SearchService
from spark_sink.work import TableId
from tests.spark_sink.landing import Chunk, Table, delete, insert, table_id, truncate, update
from tests.spark_sink.search_shop import LAST_ID, ORDERS, ORDERS_ID, VIEW_ID, Shop, answering, joined, order
from tests.stack import http_client, wait_for

OF_ORDERS = {"tenant": "acme", "source": "shop", "database": "shop", "table": "orders"}
OF_VIEW = {"tenant": "acme", "source": "~views", "database": "views", "table": "orders_of_customers"}
#: its segment in a folder ends with a digest
LONG = Table("\N{CJK UNIFIED IDEOGRAPH-4E2D}" * 60, {"id": pa.int64()}, database="a/b")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is."""
    monkeypatch.setattr(lag, "WAIT_SECONDS", 300)


def filled(folder: Path) -> Shop:
    shop = Shop(folder)
    shop.fill()
    shop.index()
    return shop


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """One that no test changes."""
    return filled(tmp_path_factory.mktemp("kept"))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Of a test that changes it."""
    return filled(tmp_path)


@contextmanager
def asking(shop: Shop) -> Iterator[httpx.Client]:
    with answering(SearchService(shop.indexes, timeout_seconds=300)) as url, http_client(url) as client:
        yield client


@pytest.fixture
def client(kept: Shop) -> Iterator[httpx.Client]:
    with asking(kept) as client:
        yield client


@pytest.fixture
def shop_client(shop: Shop) -> Iterator[httpx.Client]:
    with asking(shop) as client:
        yield client


def found(client: httpx.Client, **asked: object) -> dict[str, Any]:
    answer = client.post("/v1/search", json={**OF_ORDERS, **asked})
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def refused(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    facts = answer.json()
    assert facts["status"] == answer.status_code
    assert facts["title"] and facts["detail"] and facts["found"] and facts["remedy"]
    return answer.status_code, facts["code"]


def listed(client: httpx.Client, **asked: object) -> list[str]:
    answer = client.post("/v1/indexes", json={"tenant": "acme", **asked})
    assert answer.status_code == 200, answer.text
    return [each["table"] for each in answer.json()["indexes"]]


def test_a_search_when_it_is_asked_then_rows_come_whole_with_counts_and_how_far_the_index_is(
    kept: Shop, client: httpx.Client
) -> None:
    answer = found(client, text="red bicy*", filters=["total>=20"], facets=["status"], limit=2)
    fits = [each for each in joined() if "Red bicycle" in str(each["note"]) and each["total"] >= 20]  # type: ignore[operator]
    assert (answer["total"], len(answer["rows"]), answer["key"]) == (len(fits), 2, ["id"])
    assert list(answer["rows"][0]) == list(ORDERS.columns) == [each["name"] for each in answer["columns"]]
    (facet,) = answer["facets"]
    assert (facet["column"], sum(each["rows"] for each in facet["counts"]), facet["other_rows"]) == (
        "status",
        len(fits),
        0,
    )
    assert (answer["cut"], answer["lake_cut"], answer["behind_us"], answer["unknown"]) == (1, 1, 0, "")
    (last,) = found(client, filters=[f"id={LAST_ID}"])["rows"]
    assert last["id"] == str(LAST_ID), "no reader of JSON keeps its digits as a number"
    of_view = found(client, **OF_VIEW, text="city:krakow")
    assert of_view["total"] == 8
    assert {each["customer"] for each in of_view["rows"]} == {"Zofia Żółkiewska"}


def test_an_index_when_the_lake_has_gone_on_then_it_is_said_how_far_until_it_follows(
    shop: Shop, shop_client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag, "FRESH_SECONDS", 0)
    shop.cut((ORDERS, [delete(**order(1))]))
    behind = wait_for("the lag", lambda: (each := found(shop_client))["lake_cut"] == 2 and each)
    assert (behind["cut"], behind["total"]) == (1, 40)
    assert behind["behind_us"] > 0
    shop.index()
    caught_up = wait_for("no lag", lambda: (each := found(shop_client))["behind_us"] == 0 and each)
    assert (caught_up["cut"], caught_up["total"]) == (2, 39)


def test_a_tenant_when_it_asks_then_reaches_no_index_of_another(kept: Shop, client: httpx.Client) -> None:
    other = {**OF_ORDERS, "tenant": "globex"}
    assert refused(client.post("/v1/search", json=other)) == (404, "SEARCH_INDEX_MISSING")
    assert client.post("/v1/indexes", json={"tenant": "globex"}).json() == {"indexes": [], "next": None}
    ways = (
        {"tenant": "globex/../acme"}, {"tenant": "../indexes/acme"}, {"tenant": ".."}, {"tenant": ""},
        {"tenant": "globex", "source": "../acme/shop"}, {"source": ".."}, {"source": "~views/../shop"},
    )  # fmt: skip
    for way in ways:
        assert refused(client.post("/v1/search", json={**OF_ORDERS, **way})) == (422, "SEARCH_REFUSED"), way
    for way in ({"database": "..", "table": "shop/orders"}, {"database": "../../../acme/shop/shop"}):
        asked = {"tenant": "globex", "source": "shop", "database": "shop", "table": "orders", **way}
        assert refused(client.post("/v1/search", json=asked)) == (404, "SEARCH_INDEX_MISSING"), way
    assert refused(client.post("/v1/indexes", json={"tenant": "../indexes/acme"})) == (422, "SEARCH_REFUSED")


def test_a_question_when_it_can_not_be_answered_then_it_is_refused_with_what_to_change(client: httpx.Client) -> None:
    json_ = {"content-type": "application/json"}
    bodies = [b"", b"[]", b"[" * 100_000, b"\xff", b'{"tenant": 1}', b"x" * (MAX_BODY_BYTES + 1)]
    listings = [{"limit": True}, {"limit": 100_000}, {"after": ["shop"]}, {"after": [1, 2, 3]}]
    searches = [
        {"text": "half \ud800"}, {"text": '"'}, {"text": 1}, {"filters": ["id=x"]}, {"filters": "id=1"},
        {"facets": ["none"]}, {"limit": 0}, {"table": ""}, {"table": "\ud800"},
    ]  # fmt: skip
    asked = [(path, body) for path in ("/v1/search", "/v1/indexes") for body in bodies]
    asked += [("/v1/indexes", json.dumps({"tenant": "acme", **each}).encode()) for each in listings]
    asked += [("/v1/search", json.dumps({**OF_ORDERS, **each}).encode()) for each in searches]
    for path, body in asked:
        answer = client.post(path, content=body, headers=json_)
        assert refused(answer) == (422, "SEARCH_REFUSED"), (path, body[:200])


def test_a_caller_when_he_has_not_the_token_then_he_is_told_nothing(kept: Shop, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    with answering(SearchService(kept.indexes, token=file)) as url, http_client(url) as client:
        for shown in ({}, {"authorization": "secret"}, {"authorization": "Bearer Secret"}):
            answer = client.post("/v1/search", json=OF_ORDERS, headers=shown)
            assert refused(answer) == (401, "SEARCH_CALLER_REFUSED")
            assert answer.headers["www-authenticate"] == "Bearer"
        good = {"authorization": "Bearer secret"}
        assert client.post("/v1/search", json=OF_ORDERS, headers=good).status_code == 200
        file.write_text("another")
        assert client.post("/v1/search", json=OF_ORDERS, headers=good).status_code == 401
        file.unlink()
        assert client.post("/v1/search", json=OF_ORDERS, headers=good).status_code == 500


def test_a_page_of_a_browser_when_it_asks_on_loopback_then_it_is_refused(client: httpx.Client) -> None:
    for headers in ({"host": "rebound.example"}, {"content-type": "text/plain"}, {"host": "[::"}):
        answer = client.post("/v1/search", json=OF_ORDERS, headers=headers)
        assert refused(answer) == (401, "SEARCH_CALLER_REFUSED"), headers


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Searches go on until it is set."""
    let_go, real = threading.Event(), FolderIndex._found

    def found(*arguments: Any) -> Any:
        let_go.wait()
        return real(*arguments)

    monkeypatch.setattr(FolderIndex, "_found", found)
    yield let_go
    let_go.set()


def test_searches_when_they_take_too_long_then_they_keep_their_turns_and_others_are_refused_until_they_end(
    kept: Shop, held: threading.Event
) -> None:
    service = SearchService(kept.indexes, most_at_once=2, timeout_seconds=0.05)
    with answering(service) as url, http_client(url) as client:
        for late in (1, 2):
            assert refused(client.post("/v1/search", json=OF_ORDERS)) == (422, "SEARCH_TOO_LONG")
            assert (service.running, service.late) == (late, late)
        threads = threading.active_count()
        for _ in range(5):
            answer = client.post("/v1/search", json=OF_ORDERS)
            assert refused(answer) == (503, "SEARCH_BUSY")
            assert answer.headers["retry-after"] == "1"
            assert refused(client.post("/v1/indexes", json={"tenant": "acme"})) == (503, "SEARCH_BUSY")
        assert threading.active_count() <= threads
        held.set()
        wait_for("the turns", lambda: service.running == 0, every=0.01)
        service._timeout_seconds = 300
        assert client.post("/v1/search", json=OF_ORDERS).status_code == 200
        assert service.ended == {"late": 2, "busy": 10, "answered": 1}


def test_rows_when_they_are_very_large_then_values_are_cut_off_and_rows_left_out_and_both_are_said(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path)
    shop.cut((ORDERS, [insert(**order(number, note="x " * MOST_VALUE_CHARS)) for number in range(1, 5)]))
    shop.index(ORDERS_ID)
    with (
        answering(SearchService(shop.indexes, timeout_seconds=300)) as url,
        http_client(url) as client,
    ):
        answer = found(client)
        assert (len(answer["rows"]), answer["shortened"], answer["left_out"]) == (4, 4, 0)
        assert {len(each["note"]) for each in answer["rows"]} == {MOST_VALUE_CHARS}


def test_rows_when_they_are_too_many_bytes_together_then_the_first_ones_come(
    kept: Shop, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_sink.search.questions.MOST_ROW_BYTES", 500)
    answer = found(client, limit=10)
    assert 0 < len(answer["rows"]) < 10
    assert len(answer["rows"]) + answer["left_out"] == 10


def test_indexes_when_they_are_listed_then_each_is_named_as_its_table_in_pages_and_a_damaged_one_says_so(
    shop: Shop, shop_client: httpx.Client
) -> None:
    shop.cut((LONG, [insert(id=1)]))
    shop.index(table_id(LONG), ORDERS_ID, VIEW_ID)
    names = [LONG.name, "orders", "orders_of_customers"]
    assert listed(shop_client) == names
    first = shop_client.post("/v1/indexes", json={"tenant": "acme", "limit": 2}).json()
    assert first["next"] == ["shop", "shop", "orders"]
    assert listed(shop_client, after=first["next"], limit=2) == names[2:]
    home = shop.indexes / ORDERS_ID.default_folder
    (home / TABLE_FILE).unlink()  # as of an index of before
    assert listed(shop_client) == names
    (home / "1/meta.json").write_text("{}")
    _, damaged, _ = shop_client.post("/v1/indexes", json={"tenant": "acme"}).json()["indexes"]
    assert (damaged["table"], damaged["rows"], damaged["cut"]) == ("orders", None, None)
    assert damaged["unknown"]
    (home / "1/meta.json").unlink()  # begun, and not completed
    assert listed(shop_client) == [names[0], names[2]]
    (home / TABLE_FILE).write_text(json.dumps({"format": 1, **OF_VIEW}))
    assert refused(shop_client.post("/v1/indexes", json={"tenant": "acme"})) == (500, "SEARCH_INDEX_FAILED")


@pytest.fixture
def reached(kept: Shop) -> Any:
    return open_search(kept.indexes, ORDERS_ID).reached


def test_a_lag_when_the_lake_does_not_answer_then_the_reason_stands_in_its_place_and_no_search_waits_for_it(
    kept: Shop, reached: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(failure: Exception) -> Callable[..., Any]:
        def look(*_: str) -> Any:
            raise failure

        return look

    looks = {
        "a store failed: ENOENT": fails(OSError(2, "gone")),
        "no such table": fails(TableNotInLake("x", "no such table")),
        "has no cut with": lambda *source: SourceSeen(source[0], (), {}),
    }
    for words, look in looks.items():
        lags = Lags(look)
        assert all(words in lags.of(str(kept.lake.folder), ORDERS_ID, reached) for _ in range(3)), words
    monkeypatch.setattr(lag, "WAIT_SECONDS", 0.01)
    lags = Lags(lambda *_: threading.Event().wait())
    assert all("has not answered within" in lags.of(str(kept.lake.folder), ORDERS_ID, reached) for _ in range(3))


def test_a_lag_when_many_ask_for_it_then_the_lake_is_read_once_and_its_last_answer_is_good_for_a_while(
    kept: Shop, reached: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, let_go = [], threading.Event()

    def look(*source: str) -> SourceSeen:
        looks.append(source)
        if len(looks) > 1:
            let_go.wait()
        return SourceSeen.look(*source)

    lags, lake = Lags(look), str(kept.lake.folder)
    monkeypatch.setattr(lag, "WAIT_SECONDS", 300)
    monkeypatch.setattr(lag, "FRESH_SECONDS", 300)
    assert [lags.of(lake, ORDERS_ID, reached).seconds for _ in range(3)] == [0, 0, 0]
    assert len(looks) == 1
    monkeypatch.setattr(lag, "FRESH_SECONDS", 0)
    monkeypatch.setattr(lag, "KNOWN_SECONDS", 300)
    assert [lags.of(lake, ORDERS_ID, reached).seconds for _ in range(3)] == [0, 0, 0]
    wait_for("the second look", lambda: len(looks) == 2, every=0.01)
    let_go.set()
    monkeypatch.setattr(lag, "MOST_SOURCES", 2)
    for number in range(5):
        assert "has no cut with" in lags.of(lake, TableId("acme", f"s{number}", "shop", "x"), reached)
    assert len(lags._known) == 2


@pytest.fixture
def lake_client(shop: Shop) -> Iterator[httpx.Client]:
    """Of a service that knows the lake."""
    running = SearchService(shop.indexes, str(shop.lake.folder), timeout_seconds=300)
    with answering(running) as url, http_client(url) as client:
        yield client


def changes(client: httpx.Client, **asked: object) -> dict[str, Any]:
    answer = client.post("/v1/changes", json={**OF_ORDERS, **asked})
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def test_changes_when_they_are_asked_for_then_the_newest_come_first_with_the_row_before_and_after(
    shop: Shop, lake_client: httpx.Client
) -> None:
    first = changes(lake_client)
    assert (first["cut"], first["left_out"], first["shortened"]) == (1, 0, 0)
    assert [each["op"] for each in first["changes"]] == ["c"] * 20
    assert [each["key"]["id"] for each in first["changes"]] == [str(LAST_ID), *map(str, range(39, 20, -1))]
    shop.cut((ORDERS, [update(order(3), order(3, status="late")), delete(**order(5)), insert(**order(41))]))
    came, went, changed = changes(lake_client, limit=3)["changes"]
    assert (came["op"], came["key"], came["before"]) == ("c", {"id": "41"}, None)
    assert (came["after"]["total"], came["after"]["note"]) == (str(order(41)["total"]), order(41)["note"])
    assert (went["op"], went["key"], went["after"]) == ("d", {"id": "5"}, None)
    assert (changed["op"], changed["before"]["status"], changed["after"]["status"]) == ("u", order(3)["status"], "late")
    assert changed["before"]["placed_at"] == changed["after"]["placed_at"] == "2026-11-02T05:30:00.000003"
    assert int(came["gsn"]) > int(went["gsn"]) > int(changed["gsn"])
    assert came["at_us"] == changed["at_us"] and came["position"]
    shop.cut(truncate(ORDERS))
    (gone,) = changes(lake_client, limit=1)["changes"]
    assert (gone["op"], gone["key"], gone["before"], gone["after"]) == ("t", None, None, None)


def test_changes_when_they_are_many_bytes_then_the_newest_are_given_and_it_is_said_what_is_not(
    shop: Shop, lake_client: httpx.Client
) -> None:
    shop.cut((ORDERS, [insert(**order(number, note="x" * (MOST_VALUE_CHARS + 1))) for number in range(100, 200)]))
    found = changes(lake_client, limit=MOST_CHANGES)
    assert found["shortened"] == MOST_CHANGES and found["left_out"] == 0
    shop.cut((ORDERS, [insert(**order(number, note="\N{SNOWMAN}" * MOST_VALUE_CHARS)) for number in range(200, 300)]))
    found = changes(lake_client, limit=MOST_CHANGES)
    assert found["changes"][0]["key"]["id"] == "299"
    assert 0 < len(found["changes"]) < MOST_CHANGES == len(found["changes"]) + found["left_out"]
    assert len(json.dumps(found, ensure_ascii=False).encode()) <= MOST_ROW_BYTES + 1000


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        ({"table": "nothing"}, 404, "TABLE_NOT_IN_LAKE"),
        ({"source": "other"}, 404, "TABLE_NOT_IN_LAKE"),
        ({"tenant": "globex"}, 404, "TABLE_NOT_IN_LAKE"),
        ({"tenant": "../acme"}, 422, "SEARCH_REFUSED"),
        ({"limit": 0}, 422, "SEARCH_REFUSED"),
        ({"limit": MOST_CHANGES + 1}, 422, "SEARCH_REFUSED"),
        ({"limit": True}, 422, "SEARCH_REFUSED"),
    ],
)
def test_changes_when_they_can_not_be_had_then_it_is_said_why(
    lake_client: httpx.Client, asked: dict[str, object], status: int, code: str
) -> None:
    assert refused(lake_client.post("/v1/changes", json={**OF_ORDERS, **asked})) == (status, code)


def test_changes_when_the_service_knows_no_lake_then_it_names_the_option(client: httpx.Client) -> None:
    answer = client.post("/v1/changes", json=OF_ORDERS)
    assert refused(answer) == (404, "TABLE_NOT_IN_LAKE")
    assert "--lake" in answer.json()["remedy"]


def test_changes_when_a_file_of_the_lake_is_gone_then_the_store_is_named_and_the_service_goes_on(
    shop: Shop, lake_client: httpx.Client
) -> None:
    folder = shop.lake.folder / ORDERS_ID.default_folder / "changelog"
    away = [file.rename(file.with_suffix(".away")) for file in folder.glob("**/*.parquet")]
    assert refused(lake_client.post("/v1/changes", json=OF_ORDERS)) == (500, "LAKE_STORAGE_FAILED")
    for file in away:
        file.rename(file.with_suffix(".parquet"))
    assert changes(lake_client)["changes"]


def test_changes_when_a_dumps_rows_share_one_number_then_no_more_are_read_than_are_shown(
    shop: Shop, lake_client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    real = Shape.rows
    monkeypatch.setattr(Shape, "rows", lambda shape, found: read.append(found.num_rows) or real(shape, found))
    shop.cut((ORDERS, [insert(**order(41))]))
    shop.cut(Chunk(ORDERS, [order(number) for number in range(1, 2_000)], shop.lake.writer.last_gsns["acme", "shop"]))
    shop.cut((ORDERS, [insert(**order(5_000))]))
    read.clear()
    newest, *dumped = changes(lake_client, limit=5)["changes"]
    assert newest["key"] == {"id": "5000"} and [each["op"] for each in dumped] == ["r"] * 4
    assert sum(read) == 10


def test_changes_when_the_lake_does_not_answer_then_half_of_the_turns_are_left_to_searches(
    kept: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, entered = threading.Event(), threading.Semaphore(0)

    def slow(_lake: str, _table: TableId, _most: int) -> RecentChanges:
        entered.release()
        go_on.wait()
        return RecentChanges(1, [])

    monkeypatch.setattr(service, "recent_changes", slow)
    running = SearchService(kept.indexes, str(kept.lake.folder), most_at_once=4, timeout_seconds=300)
    with answering(running) as url, http_client(url) as client, ThreadPoolExecutor() as pool:
        asked = [
            pool.submit(client.post, "/v1/changes", json={**OF_ORDERS, "table": name}) for name in ("orders", "items")
        ]
        for _ in asked:
            entered.acquire()
        for name in ("orders", "others"):
            answer = client.post("/v1/changes", json={**OF_ORDERS, "table": name})
            assert refused(answer) == (503, "SEARCH_BUSY")
        assert found(client, text="bicycle")["total"] > 0
        go_on.set()
        assert [each.result().status_code for each in asked] == [200, 200]
        assert client.post("/v1/changes", json=OF_ORDERS).status_code == 200
