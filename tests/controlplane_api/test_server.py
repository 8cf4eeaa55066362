"""Requests that do not come to an end."""

import socket
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
from menura import http_server

from controlplane_api.database import Database
from tests.controlplane_api.conftest import serving
from tests.stack import http_client

HEAD = b"POST /api/v1/tenants/acme/tokens HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HT", HEAD, HEAD + b"Content-Length: 100\r\n\r\n{"], ids=["nothing", "line", "headers", "body"]
)
def test_request_when_it_does_not_come_to_its_end_then_its_connection_is_closed(
    database: Database, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """Also while bytes of its headers go on to come, one after the other."""
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 0.5)
    with serving(database) as url, socket.create_connection(_address(url), timeout=300) as slow:
        with suppress(ConnectionError):
            slow.sendall(sent)
            slow.settimeout(0.05)
            while not _is_closed(slow):
                if sent == HEAD:
                    slow.sendall(b"x")
        monkeypatch.setattr(http_server, "REQUEST_SECONDS", 300)
        with http_client(url) as client:
            assert client.get("/healthz").is_success


def test_request_when_it_comes_whole_on_a_connection_that_stays_then_it_is_answered(database: Database) -> None:
    with serving(database) as url, socket.create_connection(_address(url), timeout=300) as kept:
        for _ in range(3):
            kept.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = b""
            while not answer.endswith(b'{"status":"ok"}'):
                answer += kept.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 200")


def _is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(65_536) == b""
    except TimeoutError:
        return False


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return str(parts.hostname), int(parts.port or 0)
