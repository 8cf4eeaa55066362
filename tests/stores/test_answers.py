"""What an object store's answers come to, by a server that gives those that no real one gives when asked."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from menura.stores.object_store import ObjectStore
from menura.stores.opening import open_store
from menura.stores.options import parse
from menura.stores.store import OutcomeUnknown, Store
from obstore.store import LocalStore


class Handler(BaseHTTPRequestHandler):
    """Keeps each put document, whatever it answers."""

    protocol_version = "HTTP/1.1"
    server: "Server"

    def log_message(self, *_: object) -> None:
        pass

    def do_PUT(self) -> None:
        self.server.documents.append(self.rfile.read(int(self.headers["Content-Length"])))
        status, word = self.server.script.pop(0)
        answer = f"<Error><Code>{word}</Code></Error>".encode() if word else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, script: list[tuple[int, str]]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script = script
        self.documents: list[bytes] = []


@contextmanager
def answering(*script: tuple[int, str]) -> Iterator[tuple[Store, Server]]:
    with Server(list(script)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        access = ["aws_access_key_id=tests", "aws_secret_access_key=env:SECRET", "aws_region=us-east-1"]
        endpoint = f"aws_endpoint=http://127.0.0.1:{server.server_port}"
        try:
            yield open_store("s3://bucket/landing", parse([*access, endpoint, "allow_http=true"], {})), server
        finally:
            server.shutdown()


@pytest.mark.parametrize("second", [(403, "ExpiredToken"), (412, "PreconditionFailed")])
def test_put_if_absent_when_it_is_written_and_the_answer_is_an_error_then_no_second_try_hides_that(
    second: tuple[int, str], monkeypatch: pytest.MonkeyPatch
):
    """By what the second one says, nothing would have been written, or another writer had been first."""
    monkeypatch.setenv("SECRET", "secret")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with answering((500, "InternalError"), second) as (store, server):
        with pytest.raises(OutcomeUnknown, match="InternalError"):
            store.put_if_absent("log/1.json", b"document")
        assert server.documents == [b"document"]


def test_files_when_some_are_gone_already_then_a_store_that_takes_one_at_a_time_deletes_the_others(tmp_path: Path):
    """As after a kill in the middle: what was left behind then stayed for ever."""
    client = LocalStore(tmp_path)
    store = ObjectStore(client, client)
    names = [f"data/{number:03}" for number in range(50)]
    for name in names[10:]:
        store.put(name, b"rows")
    store.delete(names)
    assert list(store.list("data")) == []
