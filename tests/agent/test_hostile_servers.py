"""What a hostile listener at a server's address gets of a login: it asks for the password in all ways that show it."""

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from menura.errors import MenuraError

from agent.config_entries import Secret
from agent.errors import SourceFailed, SourceLoginUnsafe, SourceTlsFailed
from agent.sources.mysql import config as mysql
from agent.sources.mysql.server import connection as mysql_connection
from agent.sources.postgresql import config as postgresql
from agent.sources.postgresql.server import connection as postgresql_connection
from tests.servers import server

PASSWORD = "s3cret-of-the-database"
#: reaches the listener here, and is no loopback address as a configuration has it
BEYOND = "0.0.0.0"
SALT = b"12345678123456789012"

Play = Callable[[socket.socket], bytes]


@contextmanager
def listener(play: Play, heard: list[bytes]) -> Iterator[int]:
    """Plays once; what it hears from then on is in `heard`."""
    with closing(socket.create_server((BEYOND, 0))) as listening:
        listening.settimeout(300)

        def serve() -> None:
            peer, _ = listening.accept()
            with closing(peer):
                peer.settimeout(300)
                heard.append(play(peer))
                with suppress(ConnectionResetError):
                    while data := peer.recv(1 << 16):
                        heard.append(data)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        thread.join()


def packet(number: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "little") + bytes([number]) + body


def greeting(plugin: bytes) -> bytes:
    """Protocol 10, without TLS."""
    body = b"\x0a9.7.0\0" + bytes(4) + SALT[:8] + b"\0" + b"\xff\xf7\xff\2\0\xff\xdf\x15" + bytes(10)
    return packet(0, body + SALT[8:] + b"\0" + plugin + b"\0")


def switch(number: int, plugin: bytes, data: bytes = SALT + b"\0") -> bytes:
    return packet(number, b"\xfe" + plugin + b"\0" + data)


def answers(greeted: bytes, *after: bytes) -> Play:
    """Greets, and asks after each answer; returns all that was answered before the last question."""

    def play(peer: socket.socket) -> bytes:
        peer.sendall(greeted)
        heard = b""
        for question in after:
            heard += peer.recv(1 << 16)
            peer.sendall(question)
        return heard

    return play


NATIVE, SHA2 = b"mysql_native_password", b"caching_sha2_password"
CLEAR = b"mysql_clear_password"
MYSQL = {
    "clear": answers(greeting(NATIVE), switch(2, CLEAR, b"")),
    "clear_by_the_greeting": answers(greeting(CLEAR), switch(2, CLEAR, b"")),
    "dialog": answers(greeting(NATIVE), switch(2, b"dialog", b"\4Password: ")),
    "old": answers(greeting(NATIVE), switch(2, b"mysql_old_password")),
    "unknown": answers(greeting(SHA2), switch(2, b"auth_gssapi_client\x1b[2J")),
    "clear_after_fast_login": answers(greeting(SHA2), packet(2, b"\1\3") + switch(3, CLEAR, b"")),
}
#: PyMySQL itself does not know what these mean
MYSQL_NONSENSE = {
    "old_without_a_name": answers(greeting(NATIVE), packet(2, b"\xfe")),
    "more_after_clear": answers(greeting(CLEAR), packet(2, b"\1Password: ")),
    "switch_twice": answers(greeting(NATIVE), switch(2, NATIVE), switch(4, CLEAR, b"")),
}


def message(code: int, data: bytes = b"") -> bytes:
    return b"R" + struct.pack("!ii", 8 + len(data), code) + data


#: of PostgreSQL
TERMINATE = b"X\0\0\0\4"


def untrusted(*after: bytes) -> Play:
    """Has no TLS, and asks."""
    return answers(b"", b"N", *after)


def mysql_login(port: int, host: str, mode: str) -> None:
    tls = mysql.ServerTls(mysql.TlsMode(mode))
    mysql_connection.connect(mysql.ServerConfig(host, "menura", port, Secret(PASSWORD), tls), "shop").close()


def postgresql_login(port: int, host: str, mode: str) -> None:
    tls = postgresql.ServerTls(postgresql.TlsMode(mode))
    named = postgresql.ServerConfig(host, "menura", "shop", port, Secret(PASSWORD), tls)
    postgresql_connection.connect(named, "shop").close()


def refused(play: Play, login: Callable[[int], None]) -> tuple[MenuraError, list[bytes]]:
    heard: list[bytes] = []
    with listener(play, heard) as port, pytest.raises(MenuraError) as error:
        login(port)
    assert PASSWORD.encode() not in b"".join(heard)
    assert PASSWORD not in str(error.value)
    return error.value, heard


@pytest.mark.parametrize("host", ["127.0.0.1", BEYOND])
@pytest.mark.parametrize("name", MYSQL)
def test_mysql_login_when_what_answers_asks_for_the_password_itself_then_nothing_is_sent(name: str, host: str) -> None:
    error, heard = refused(MYSQL[name], lambda port: mysql_login(port, host, "preferred"))
    assert isinstance(error, SourceLoginUnsafe), error
    assert str(error).isprintable()
    assert "sources.shop.client.host" in error.remedy
    assert heard[1:] in ([], [packet(3, b"")])


def test_mysql_login_when_the_account_has_another_plugin_then_the_statement_of_the_message_lets_it_in(
    tmp_path: Path,
) -> None:
    error, _ = refused(MYSQL["clear"], lambda port: mysql_login(port, "127.0.0.1", "preferred"))
    found = re.search(r"ALTER USER .*? BY '\.\.\.'", error.remedy)
    assert found is not None
    with server("mysql", tmp_path / "server") as running:
        running.create_replication_user()
        running.run(found[0].replace("'...'", f"'{PASSWORD}'"))
        mysql_login(running.port, "127.0.0.1", "preferred")


@pytest.mark.parametrize("name", MYSQL_NONSENSE)
def test_mysql_login_when_the_question_is_nonsense_then_nothing_of_the_password_is_sent(name: str) -> None:
    error, _ = refused(MYSQL_NONSENSE[name], lambda port: mysql_login(port, "127.0.0.1", "preferred"))
    assert isinstance(error, SourceFailed)


@pytest.mark.parametrize("host", ["127.0.0.1", BEYOND])
def test_postgresql_login_when_what_answers_asks_for_the_password_itself_then_nothing_is_sent(host: str) -> None:
    error, heard = refused(untrusted(message(3)), lambda port: postgresql_login(port, host, "prefer"))
    assert isinstance(error, SourceLoginUnsafe)
    assert "verify-full" in error.remedy
    assert heard[1:] in ([], [TERMINATE])


def test_postgresql_login_when_what_answers_asks_for_md5_beyond_this_host_then_nothing_is_sent() -> None:
    question = untrusted(message(5, b"salt"))
    for mode in ("prefer", "disable"):
        play = question if mode == "prefer" else answers(b"", message(5, b"salt"))
        error, heard = refused(play, lambda port, mode=mode: postgresql_login(port, BEYOND, mode))  # type: ignore[misc]
        assert isinstance(error, SourceLoginUnsafe)
        assert heard[1:] in ([], [TERMINATE])


def test_postgresql_login_when_the_server_skips_its_proof_of_scram_then_it_is_refused() -> None:
    def play(peer: socket.socket) -> bytes:
        peer.recv(1 << 16)
        peer.sendall(b"N")
        peer.recv(1 << 16)
        peer.sendall(message(10, b"SCRAM-SHA-256\0\0"))
        first = peer.recv(1 << 16)
        nonce = first[first.index(b",r=") + 3 :]
        peer.sendall(message(11, b"r=" + nonce + b"x,s=c2FsdHNhbHRzYWx0c2FsdA==,i=4096") + message(0))
        return first

    error, _ = refused(play, lambda port: postgresql_login(port, "127.0.0.1", "prefer"))
    assert isinstance(error, SourceLoginUnsafe)


@pytest.mark.parametrize(
    ("login", "mode", "play"),
    [
        (mysql_login, "verify_identity", answers(greeting(SHA2))),
        (postgresql_login, "verify-full", untrusted(message(3))),
    ],
)
def test_login_when_the_default_beyond_this_host_meets_a_listener_without_tls_then_no_name_is_told(
    login: Callable[[int, str, str], None], mode: str, play: Play
) -> None:
    error, heard = refused(play, lambda port: login(port, BEYOND, mode))
    assert isinstance(error, SourceTlsFailed)
    assert b"menura" not in b"".join(heard)
    assert "{mode: prefer" in error.remedy
