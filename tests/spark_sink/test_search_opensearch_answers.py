"""What comes from an OpenSearch, or from who stands in its place: hostile answers, logins, certificates."""

import base64
import copy
import json
import random
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from spark_sink.errors import SearchIndexFailed, SearchRefused, SinkError, SinkSettingInvalid
from spark_sink.export.position import NOTHING
from spark_sink.search import asking
from spark_sink.search.asking import Found, Search
from spark_sink.search.entries import Entry, Reached
from spark_sink.search.opensearch import cluster
from spark_sink.search.opensearch.bulk import Bulk, Operation
from spark_sink.search.opensearch.cluster import Cluster
from spark_sink.search.opensearch.mapping import document_of
from spark_sink.search.opensearch.position import document_of as position_of
from spark_sink.search.searching import open_digests, open_search
from tests.gateway.test_session import make_certificates
from tests.servers import free_port
from tests.spark_sink.test_search_asking import DEFINITION, TABLE

SECRET = "a-secret-of-tests"
REACHED = Reached("/lake", 7, 1, NOTHING, DEFINITION)
ROW = document_of(Entry("a" * 32, {"id": 1, "title": "red", "price": "1.50", "day": 7, "ratio": "nan"}, {}), DEFINITION)
#: to a search with two facets
ANSWER: dict[str, Any] = {
    "timed_out": False,
    "hits": {
        "total": {"value": 2, "relation": "eq"},
        "hits": [{"_source": position_of(REACHED, "host:1:abcd")}, {"_source": {"row": ROW["row"]}}],
    },
    "aggregations": {
        "values0": {"sum_other_doc_count": 0, "buckets": [{"key": "red", "doc_count": 1}]},
        "long0": {"doc_count": 0},
        "values1": {"sum_other_doc_count": 0, "buckets": [{"key": 150, "doc_count": 1}]},
    },
}


class Answers:
    """What is answered next, and what was asked."""

    def __init__(self) -> None:
        self.status, self.body = 200, json.dumps(ANSWER).encode()
        self.length: int | None = None
        #: nothing is answered before
        self.halts: threading.Event | None = None
        #: byte by byte
        self.drips = False
        self.asked: list[dict[str, str]] = []


@contextmanager
def answering(answers: Answers, folder: Path | None = None) -> Iterator[str]:
    """The address; with TLS of the certificates in a folder."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version, wbufsize = "HTTP/1.1", -1

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answers.asked.append(dict(self.headers))
            if answers.halts is not None:
                answers.halts.wait(300)
            self.send_response(answers.status)
            length = len(answers.body) * (1001 if answers.drips else 1) if answers.length is None else answers.length
            self.send_header("Content-Length", str(length))
            self.end_headers()
            for byte in answers.body * 1000 if answers.drips else ():
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                time.sleep(0.01)
            self.wfile.write(answers.body)
            self.close_connection = length != len(answers.body)

        do_DELETE = do_POST

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # who asked has gone
    if folder is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "end.pem", folder / "end.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"{'http' if folder is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def where(answers: Answers) -> Iterator[Cluster]:
    with answering(answers) as url:
        found = Cluster(url)
        yield found
        found.close()


def ask(where: Cluster) -> Found:
    return open_search(where, TABLE).ask(Search("red", (), ["title", "price"], timeout_seconds=300))


def test_an_answer_when_it_is_as_it_should_be_then_it_is_found(where: Cluster) -> None:
    found = ask(where)
    assert (found.total, [row["price"] for row in found.rows]) == (1, ["1.50"])
    assert [each.counts[0].value for each in found.facets.values()] == ["red", "1.50"]


JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    1e300,
    float("nan"),
    10**400,
    "",
    "x",
    "\ud800",
    [],
    {},
    [[]],
    {"": None},
    [1] * 2000,
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    names = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for name in names:
        yield from places(value[name], (*path, name))


def test_an_answer_when_any_part_of_it_is_another_thing_then_there_is_an_answer_or_an_error_of_ours(
    where: Cluster, answers: Answers
) -> None:
    choose = random.Random(1)
    refused = 0
    for path in places(ANSWER):
        for junk in choose.sample(JUNK, 3):
            changed = copy.deepcopy(ANSWER)
            of: Any = changed
            for name in path[:-1]:
                of = of[name]
            of[path[-1]] = junk
            answers.body = json.dumps(changed).encode()
            try:
                ask(where)
            except SinkError:
                refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    ("status", "body", "length", "says"),
    [
        (200, b"", None, "no JSON"),
        (200, b"<html>", None, "no JSON"),
        (200, b"[" * 100_000, None, "no JSON"),
        (200, b"\xff\xfe", None, "no JSON"),
        (200, b"{}", None, "it has no"),
        (200, b"[]", None, "it has no"),
        (200, b'{"timed_out": true}', None, "it took more than"),
        (200, b"{", 100, "ConnectionError"),
        (200, b"x" * 2000, None, "too many bytes|no JSON"),
        (401, b"Unauthorized", None, "the login is refused"),
        (403, b'{"error": {"type": "security_exception", "reason": "no permissions"}}', None, "no permissions"),
        (404, b"{}", None, "has none of acme/shop: shop.things"),
        (
            400,
            b'{"error": {"type": "parsing_exception", "reason": "\\u001b[31m"}}',
            None,
            "refuses it: 400 parsing",
        ),
        (500, b"oops", None, "500"),
    ],
)
def test_an_answer_when_it_is_none_of_opensearch_then_the_error_says_so(
    where: Cluster, answers: Answers, status: int, body: bytes, length: int | None, says: str
) -> None:
    answers.status, answers.body, answers.length = status, body, length
    with pytest.raises(SinkError, match=says) as raised:
        ask(where)
    assert "\x1b" not in str(raised.value)


def test_an_answer_when_it_has_too_many_bytes_then_fewer_rows_are_asked_for(
    where: Cluster, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = open_search(where, TABLE)
    monkeypatch.setattr(asking, "MOST_BYTES", -(8 << 20) + 100)
    with pytest.raises(SearchRefused, match="too many bytes"):
        index.ask(Search("", limit=8, timeout_seconds=300))
    assert len(answers.asked) == 1 + 4  # 8, 4, 2, 1


@pytest.mark.parametrize("is_begun", [False, True])
def test_an_answer_when_it_does_not_come_in_time_then_the_search_is_refused(
    where: Cluster, answers: Answers, is_begun: bool
) -> None:
    index = open_search(where, TABLE)
    answers.halts, answers.drips = None if is_begun else threading.Event(), is_begun
    try:
        with pytest.raises(SearchRefused, match="took more than"):
            index.ask(Search("", timeout_seconds=0.2))
    finally:
        if answers.halts is not None:
            answers.halts.set()
        answers.drips = False


def item(key: str, name: str = "index", **facts: object) -> dict[str, Any]:
    return {name: {"_id": key, "status": 201, **facts}}


@pytest.mark.parametrize(
    ("items", "says"),
    [
        ([], "it answered 0 of 2"),
        (None, "it has no list at items"),
        ([item("a"), item("c")], "other documents"),
        ([item("a"), {}], "it has no int"),
        ([item("a"), item("b", status="x")], "it has no int"),
        ([item("a"), item("b", status=200, error={"type": "x"})], "digest b: 200 x"),
        ([item("a"), item("b", status=404)], "digest b: 404"),
        ([item("a"), item("b", status=400, error={"type": SECRET, "reason": SECRET})], "an error without a type"),
        ([item("a"), item("b", status=403, error={"type": "security_exception"})], "403 security_exception"),
        ([item("a"), item("b", status=404, error={"type": "index_not_found_exception"})], "another process"),
        ([item("a", status=409), item("b")], "newer rows of 1 keys"),
    ],
)
def test_rows_when_their_answers_are_not_all_well_then_the_error_says_so_and_has_no_value(
    where: Cluster, answers: Answers, items: object, says: str
) -> None:
    answers.body = json.dumps({"items": items}).encode()
    rows = Bulk(where, TABLE, "alias")
    rows.add(Operation.put("a", 1, {"row": {"title": SECRET}}))
    rows.add(Operation.delete("b", 2))
    with pytest.raises(SinkError, match=says) as raised:
        rows.flush()
    assert SECRET not in str(raised.value)
    rows.close()


def test_digests_when_their_answers_are_other_things_then_there_is_an_error_of_ours(
    where: Cluster, answers: Answers
) -> None:
    position = position_of(REACHED, "host:1:abcd")
    one = {"value": 1.0}
    bucket = {"key": 0.0, "doc_count": 1, "key_high": one, "key_low": one, "sum_high": one, "sum_low": one}
    whole: dict[str, Any] = {
        "pit_id": "p",
        "timed_out": False,
        "hits": {"total": {"value": 2}, "hits": [{"_source": position}]},
        "aggregations": {"ranges": {"buckets": [bucket]}},
    }
    answers.body = json.dumps(whole).encode()
    with open_digests(where, TABLE) as index:
        assert index.sums(0) == [(1, (1 << 32) + 1, (1 << 32) + 1)]
    refused = 0
    for path in places(whole):
        for junk in random.Random(1).sample(JUNK, 3):
            changed = copy.deepcopy(whole)
            of: Any = changed
            for name in path[:-1]:
                of = of[name]
            of[path[-1]] = junk
            answers.body = json.dumps(changed).encode()
            try:
                with open_digests(where, TABLE) as index:
                    index.sums(0)
            except SinkError:
                refused += 1
    assert refused > 20


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder


@pytest.mark.parametrize(
    ("held", "header"),
    [
        (f"menura:{SECRET}\n", f"Basic {base64.b64encode(f'menura:{SECRET}'.encode()).decode()}"),
        (f"Bearer {SECRET}", f"Bearer {SECRET}"),
    ],
)
def test_a_login_when_it_is_in_a_file_then_each_request_has_it_as_the_file_is_now(
    answers: Answers, certificates: Path, tmp_path: Path, held: str, header: str
) -> None:
    login = tmp_path / "login"
    login.write_text("former:login")
    with answering(answers, certificates) as url:
        where = Cluster(url, login, certificates / "ca.pem")
        index = open_search(where, TABLE)
        login.write_text(held)
        index.ask(Search("", timeout_seconds=300))
        where.close()
    assert [each["Authorization"] for each in answers.asked] == ["Basic Zm9ybWVyOmxvZ2lu", header]
    answers.status, answers.body = 401, b"Unauthorized"
    with answering(answers, certificates) as url:
        where = Cluster(url, login, certificates / "ca.pem")
        with pytest.raises(SearchIndexFailed, match="the login is refused") as raised:
            open_search(where, TABLE)
        where.close()
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("held", ["", SECRET, f"{SECRET}:\n{SECRET}", f"Bearer {SECRET} {SECRET}\x00", None])
def test_a_login_when_its_file_has_none_then_the_error_names_the_file_alone(tmp_path: Path, held: str | None) -> None:
    login = tmp_path / "login"
    if held is not None:
        login.write_text(held)
    with pytest.raises(SinkSettingInvalid, match=str(login)) as raised:
        open_search(Cluster("https://127.0.0.1:1", login), TABLE)
    assert SECRET not in str(raised.value)


def test_certificates_when_they_are_of_nobody_known_then_nothing_is_asked(
    answers: Answers, certificates: Path, tmp_path: Path
) -> None:
    with answering(answers, certificates) as url:
        with pytest.raises(SearchIndexFailed, match="CERTIFICATE_VERIFY_FAILED"):
            open_search(Cluster(url), TABLE)
        (tmp_path / "no.pem").write_text("none")
        for ca in (tmp_path / "no.pem", tmp_path / "missing.pem"):
            with pytest.raises(SinkSettingInvalid, match=str(ca)):
                open_search(Cluster(url, None, ca), TABLE)
    assert not answers.asked


@pytest.mark.parametrize(
    "url",
    ["", "host:9200", "ftp://host", f"https://user:{SECRET}@host:9200", "https://host:9200/path", "https://host:0",
     "https://[::1", f"https://host?{SECRET}", "https://host:port"],
)  # fmt: skip
def test_an_address_when_it_can_not_be_used_then_the_error_does_not_show_it(url: str) -> None:
    with pytest.raises(SinkSettingInvalid, match="can't be used") as raised:
        Cluster(url)
    assert SECRET not in str(raised.value)


def test_settings_when_they_are_unsafe_then_they_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SinkSettingInvalid, match="over http"):
        Cluster("http://127.0.0.1:9200", tmp_path / "login")
    for prefix in ("", "A", "-a", "a*", "a,b", "a" * 41, "_all"):
        with pytest.raises(SinkSettingInvalid, match="a prefix"):
            Cluster("http://127.0.0.1:9200", prefix=prefix)


def test_a_cluster_when_nobody_is_there_then_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "RETRY_SECONDS", 0)
    where = Cluster(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(SearchIndexFailed, match="Connection refused"):
        open_search(where, TABLE)
    with pytest.raises(SearchIndexFailed, match="Connection refused, for 0 s"):
        where.tried("GET", "/")
