"""Schemas in a registry: a real one, and one that answers whatever it likes."""

import base64
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from spark_sink.errors import ExportOutputFailed, ExportSchemaRefused, SinkError, SinkSettingInvalid
from spark_sink.export import registry
from spark_sink.export.registry import MAX_ANSWER_BYTES, Registry
from tests.controlplane_api.test_api_tls import write_certificate
from tests.schema_registry import SchemaRegistry
from tests.servers import free_port
from tests.spark_sink.test_export_avro import TABLE

#: what a handler does with a request
Answers = Callable[[BaseHTTPRequestHandler], None]
PASSWORD = "pass:word-of-tests"


def record(**types: object) -> str:
    fields = [{"name": name, "type": ["null", type_], "default": None} for name, type_ in types.items()]
    return json.dumps({"type": "record", "name": "Value", "namespace": "shop.orders", "fields": fields})


def register(of: Registry, schema: str = record(a="int"), subject: str = "shop.orders-value") -> int:
    return of.id_of(TABLE, subject, schema)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistry]:
    running = SchemaRegistry(tmp_path_factory.mktemp("registry"))
    yield running
    running.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real one on a busy machine takes its time."""
    monkeypatch.setattr(registry, "REQUEST_SECONDS", 120)
    monkeypatch.setattr(registry, "ANSWER_SECONDS", 300)


def answer(status: int, body: bytes, **headers: str) -> Answers:
    def give(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return give


@contextmanager
def serving(*answers: Answers, context: ssl.SSLContext | None = None) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Its address, and the headers of requests; each has the next answer, the last one all others."""
    seen: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append(dict(self.headers))
            try:
                answers[min(len(seen), len(answers)) - 1](self)
            except OSError:  # who asked has gone
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http{'s' if context else ''}://localhost:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.usefixtures("patient")
def test_a_schema_when_it_is_registered_then_its_id_is_the_registrys_and_it_is_asked_once(
    real: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    posts = Registry._post
    monkeypatch.setattr(Registry, "_post", lambda self, *of: asked.append(of[1]) or posts(self, *of))
    first, again = Registry(real.url), Registry(real.url)
    numbers = [register(first), register(first, record(a="int", b="string")), register(first), register(again)]
    assert len(asked) == 3 and numbers[0] == numbers[2] == numbers[3] != numbers[1]
    assert [each["id"] for each in real.versions("shop.orders-value")] == numbers[:2]
    assert json.loads(real.get(f"/schemas/ids/{numbers[1]}")["schema"])["fields"][1]["name"] == "b"


@pytest.mark.usefixtures("patient")
def test_a_schema_when_it_does_not_go_with_the_former_one_then_it_is_refused_until_the_registry_lets_it(
    real: SchemaRegistry,
) -> None:
    subject, of = "shop.compatible-value", Registry(real.url)
    register(of, record(a="int"), subject)
    real.set_compatibility("BACKWARD", subject)
    register(of, record(a="int", b="string"), subject)
    register(of, record(a="long"), subject)
    with pytest.raises(
        ExportSchemaRefused, match=f"compatibility of {re.escape(subject)} in the registry to NONE"
    ) as no:
        register(of, record(a="boolean"), subject)
    assert (no.value.table, no.value.source) == ("orders", "acme/shop") and not no.value.found.endswith(": ")
    with pytest.raises(ExportSchemaRefused):
        register(of, '{"type": "nonsense"}', "shop.nonsense-value")
    real.set_compatibility("NONE", subject)
    assert register(of, record(a="boolean"), subject)


def drip(handler: BaseHTTPRequestHandler) -> None:
    """A byte now and then, without end."""
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" ")
        time.sleep(0.02)


def flood(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b'{"id": 1, "more": "' * 4096)


@pytest.mark.history
@pytest.mark.parametrize(
    "gives",
    [
        *(answer(200, body) for body in (b"", b"{", b"[1]", b'"id"', b"null", b"\xff", b"[" * 100_000, b'{"id": ')),
        *(answer(200, b'{"id": %s}' % id_) for id_ in (b"true", b"-1", b"2147483648", b'"1"', b"1.0", b"9" * 9999)),
        answer(200, b'{"id": 1', **{"Content-Length": "99"}),
        answer(200, b'{"id": 1, "a": "%s"}' % (b"x" * MAX_ANSWER_BYTES)),
        *(answer(status, b"nonsense") for status in (408, 429, 500, 503)),
        drip,
        flood,
        lambda handler: handler.wfile.write(b"nonsense\r\n\r\n"),
        lambda handler: handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000),
        lambda handler: handler.connection.close(),
    ],
)  # fmt: skip
def test_an_answer_when_it_is_none_then_it_is_asked_for_again_and_then_says_so(
    gives: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    if gives is drip:
        monkeypatch.setattr(registry, "REQUEST_SECONDS", 1)
    with serving(gives, answer(200, b'{"id": 7}')) as (url, seen):
        assert register(Registry(url)) == 7 and len(seen) > 1
    monkeypatch.setattr(registry, "ANSWER_SECONDS", 0.1)
    with serving(gives) as (url, seen), pytest.raises(ExportOutputFailed, match="position stays"):
        register(Registry(url))
    assert len(seen) <= 1


def test_a_registry_when_one_of_its_addresses_is_away_then_another_one_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "FIRST_PAUSE_SECONDS", 0.01)
    with serving(answer(200, b'{"id": 7}')) as (url, seen):
        assert register(Registry(f"http://127.0.0.1:{free_port()},{url}/base/")) == 7
        assert len(seen) == 1
    monkeypatch.setattr(registry, "ANSWER_SECONDS", 0.1)
    with pytest.raises(ExportOutputFailed, match="refused"):
        register(Registry(f"http://127.0.0.1:{free_port()}"))


@pytest.mark.parametrize(
    ("gives", "error", "said"),
    [
        (answer(401, b""), SinkSettingInvalid, "--registry-credentials"),
        (answer(403, b""), SinkSettingInvalid, "may write the subject shop.orders-value"),
        (answer(404, b""), SinkSettingInvalid, "address of a registry"),
        (answer(302, b"", Location="http://127.0.0.1:1/"), SinkSettingInvalid, "answers 302"),
        (answer(409, b'{"message": "a\\u001b[2Jb%s"}' % (b"x" * 5000)), ExportSchemaRefused, r": a \[2Jbx{990,999}\. "),
        (answer(409, b"[" * 100_000), ExportSchemaRefused, "it does not say why"),
        (answer(422, b'{"message": 5}'), ExportSchemaRefused, ": 5"),
    ],
)  # fmt: skip
def test_an_answer_when_it_refuses_then_it_is_asked_once_and_says_what_to_do(
    gives: Answers, error: type[SinkError], said: str
) -> None:
    with serving(gives) as (url, seen), pytest.raises(error, match=said) as refused:
        register(Registry(url))
    assert len(seen) == 1 and "\x1b" not in str(refused.value)


def test_a_registry_when_it_wants_a_password_then_it_is_of_a_file_over_tls_alone(tmp_path: Path) -> None:
    write_certificate(tmp_path, "registry")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "api.pem", tmp_path / "api.key")
    file = tmp_path / "credentials"
    file.write_text(f"menura:{PASSWORD}\n")
    with serving(answer(200, b'{"id": 7}'), answer(401, PASSWORD.encode()), context=context) as (url, seen):
        with pytest.raises(SinkSettingInvalid, match="--registry-ca"):
            register(Registry(url, file))
        of = Registry(url, file, tmp_path / "api.pem")
        assert register(of) == 7
        scheme, words = seen[0]["Authorization"].split()
        assert (scheme, base64.b64decode(words).decode()) == ("Basic", f"menura:{PASSWORD}")
        with pytest.raises(SinkSettingInvalid) as refused:
            register(of, record(b="int"))
        assert PASSWORD not in str(refused.value)
        for wrong in ("", "word", f"menura:{PASSWORD}\nmore:{PASSWORD}"):
            file.write_text(wrong)
            with pytest.raises(SinkSettingInvalid, match="one line, USER:PASSWORD") as refused:
                register(of, record(c="int"))
            assert PASSWORD not in str(refused.value)
        file.unlink()
        with pytest.raises(SinkSettingInvalid, match="registry-credentials"):
            register(of, record(c="int"))
        with pytest.raises(SinkSettingInvalid, match="--registry-ca"):
            register(Registry(url, None, tmp_path / "nothing.pem"))
    with pytest.raises(SinkSettingInvalid, match="would show the password"):
        Registry("http://registry.example:8081", file)


@pytest.mark.parametrize(
    "url", ["", "registry:8081", "ftp://registry", "http://", "http://a:x", "http://a:0", "http://a?b=c", "http://a,"]
)
def test_an_address_when_it_is_none_then_it_is_refused_at_once(url: str) -> None:
    with pytest.raises(SinkSettingInvalid, match="--registry"):
        Registry(url)


def test_an_address_when_it_holds_a_password_then_it_is_refused_and_not_shown() -> None:
    with pytest.raises(SinkSettingInvalid, match="--registry-credentials") as refused:
        Registry(f"https://menura:{PASSWORD}@registry.example")
    assert "word-of-tests" not in str(refused.value)


def test_ids_when_there_are_many_then_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MOST_IDS", 2)
    with serving(*(answer(200, b'{"id": %d}' % number) for number in range(1, 9))) as (url, seen):
        of = Registry(url)
        numbers = [register(of, record(**{name: "int"})) for name in "abcac"]
    assert numbers == [1, 2, 3, 4, 3] and len(seen) == 4
