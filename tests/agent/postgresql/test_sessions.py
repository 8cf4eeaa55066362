"""Sessions with a server: logins, TLS, what is told of a server, and what goes wrong with them."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from pg8000.exceptions import InterfaceError

from agent.config_entries import Secret
from agent.errors import (
    SourceAccessDenied,
    SourceConnectionLost,
    SourceError,
    SourceFailed,
    SourceGrantMissing,
    SourceLoginUnsafe,
    SourceTlsFailed,
    SourceUnreachable,
)
from agent.sources.postgresql.config import ServerConfig, ServerTls, TlsMode
from agent.sources.postgresql.errors import SourceDatabaseMissing
from agent.sources.postgresql.server.connection import Connection, connect, facts_of, rows, server_errors, setting
from tests.agent.postgresql.sources import PASSWORD, SOURCE, USER, login
from tests.postgres import SourceServer, source_server, standby_of
from tests.servers import free_port
from tests.silent_network import SilentNetwork


@pytest.fixture(scope="module")
def secured() -> Iterator[SourceServer]:
    """It lets nobody in without TLS."""
    with source_server(tls="hostssl") as running:
        running.create_replication_user()
        yield running


def asked(server: ServerConfig, statement: str, **parameters: object) -> list[tuple[object, ...]]:
    with closing(connect(server, SOURCE)) as connection:
        return rows(connection, statement, **parameters)


def test_login_when_the_user_has_a_password_then_scram_lets_it_in(postgres: SourceServer) -> None:
    assert asked(login(postgres), "SELECT current_user::text, current_database()::text") == [(USER, "shop")]


@pytest.mark.parametrize("password", ["wrong", "", "wr\u00f6ng '"])
def test_login_when_the_password_is_wrong_then_the_error_names_the_setting(
    postgres: SourceServer, password: str
) -> None:
    with pytest.raises(SourceAccessDenied) as refused:
        connect(login(postgres, password=password), SOURCE)
    assert "sources.shop.client.user" in refused.value.remedy
    assert "28P01" in refused.value.found


@pytest.mark.parametrize("method", ["md5", "scram-sha-256"])
def test_login_when_the_server_asks_for_it_in_another_way_then_it_lets_in(method: str) -> None:
    with source_server(password_encryption=method) as running:
        running.create_replication_user()
        hba = running.folder / "data" / "pg_hba.conf"
        hba.write_text(hba.read_text().replace("scram-sha-256", method))
        running.reload()
        assert asked(login(running), "SELECT 1") == [(1,)]


def test_login_when_the_server_asks_for_the_password_itself_then_what_its_error_says_lets_in() -> None:
    with source_server(tls="host") as running:
        running.create_replication_user()
        hba = running.folder / "data" / "pg_hba.conf"
        hba.write_text(hba.read_text().replace("scram-sha-256", "password"))
        running.reload()
        for mode in (TlsMode.DISABLE, TlsMode.REQUIRE):
            with pytest.raises(SourceLoginUnsafe) as refused:
                connect(login(running, tls=mode), SOURCE)
        assert "sources.shop.client.tls: {mode: verify-full, ca: FILE}" in refused.value.remedy
        assert asked(login(running, tls=TlsMode.VERIFY_FULL, ca=str(running.ca)), "SELECT 1") == [(1,)]
        hba.write_text(hba.read_text().replace("password", "scram-sha-256"))
        running.reload()
        assert asked(login(running), "SELECT 1") == [(1,)]


def test_login_when_no_line_lets_the_user_in_then_the_error_has_the_line(secured: SourceServer) -> None:
    with pytest.raises(SourceAccessDenied) as refused:
        connect(login(secured, tls=TlsMode.DISABLE), SOURCE)
    assert "host shop menura ADDRESS scram-sha-256" in refused.value.remedy


def test_database_when_there_is_none_then_the_error_says_so(postgres: SourceServer) -> None:
    with pytest.raises(SourceDatabaseMissing):
        connect(login(postgres, database="nowhere"), SOURCE)


def test_database_when_the_user_may_not_enter_then_the_statement_of_the_message_lets_it_in(
    postgres: SourceServer,
) -> None:
    postgres.run("REVOKE CONNECT ON DATABASE shop FROM PUBLIC")
    with pytest.raises(SourceGrantMissing) as refused:
        connect(login(postgres), SOURCE)
    postgres.run(refused.value.remedy.removeprefix("Run on the server: "))
    assert asked(login(postgres), "SELECT 1") == [(1,)]


def test_replication_when_the_user_may_not_then_the_statement_of_the_message_lets_it(postgres: SourceServer) -> None:
    postgres.run("CREATE ROLE reader LOGIN PASSWORD 'menura-secret'")
    reader = login(postgres, "reader")
    with pytest.raises(SourceGrantMissing) as refused:
        connect(reader, SOURCE, replication=True)
    postgres.run(refused.value.remedy.removeprefix("Run on the server: ").partition(";")[0])
    with closing(connect(reader, SOURCE, replication=True)) as connection:
        assert rows(connection, "IDENTIFY_SYSTEM")


@pytest.mark.parametrize("mode", list(TlsMode)[1:])
def test_tls_when_the_server_wants_it_then_every_mode_that_has_it_gets_in(secured: SourceServer, mode: TlsMode) -> None:
    statement = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
    assert asked(login(secured, tls=mode), statement) == [(True,)]


@pytest.mark.parametrize("mode", list(TlsMode)[2:])
def test_tls_when_the_server_has_none_then_only_who_asks_for_it_is_refused(
    postgres: SourceServer, secured: SourceServer, mode: TlsMode
) -> None:
    with pytest.raises(SourceTlsFailed, match="the server has none"):
        connect(login(postgres, tls=mode, ca=str(secured.ca)), SOURCE)
    assert asked(login(postgres, tls=TlsMode.PREFER), "SELECT 1") == [(1,)]


def test_tls_when_another_ca_has_signed_then_who_verifies_is_refused_and_who_does_not_gets_in(
    secured: SourceServer,
) -> None:
    with source_server(tls="host") as other:
        other.create_replication_user()
        for mode in (TlsMode.VERIFY_CA, TlsMode.VERIFY_FULL):
            with pytest.raises(SourceTlsFailed) as refused:
                connect(login(other, tls=mode, ca=str(secured.ca)), SOURCE)
            assert "sources.shop.client.tls" in refused.value.remedy
        assert asked(login(other, tls=TlsMode.REQUIRE), "SELECT 1") == [(1,)]


def test_tls_when_the_certificate_is_of_another_host_then_only_verify_full_is_refused(secured: SourceServer) -> None:
    """The certificate is for the address, and not for the name."""
    tls = ServerTls(TlsMode.VERIFY_FULL, str(secured.ca))
    server = ServerConfig("localhost", USER, "shop", secured.port, Secret(PASSWORD), tls)
    with pytest.raises(SourceTlsFailed):
        connect(server, SOURCE)
    by_ca = ServerConfig(
        "localhost", USER, "shop", secured.port, Secret(PASSWORD), ServerTls(TlsMode.VERIFY_CA, str(secured.ca))
    )
    assert asked(by_ca, "SELECT 1") == [(1,)]


def test_tls_when_the_client_has_a_certificate_then_it_needs_no_password(secured: SourceServer) -> None:
    hba = secured.folder / "data" / "pg_hba.conf"
    hba.write_text("hostssl all menura 127.0.0.1/32 cert\n" + hba.read_text())
    secured.reload()
    secured.run("ALTER SYSTEM SET ssl_ca_file = '" + str(secured.ca) + "'")
    secured.reload()
    folder = secured.folder
    tls = ServerTls(TlsMode.VERIFY_FULL, str(secured.ca), str(folder / "client.pem"), str(folder / "client.key"))
    try:
        assert asked(ServerConfig("127.0.0.1", USER, "shop", secured.port, Secret(""), tls), "SELECT 1") == [(1,)]
    finally:
        hba.write_text(hba.read_text().replace("hostssl all menura 127.0.0.1/32 cert\n", ""))
        secured.reload()


def test_socket_when_the_host_is_a_folder_then_the_session_is_local(postgres: SourceServer) -> None:
    """The server's own socket asks for no password."""
    server = ServerConfig(str(postgres.folder), USER, "shop", postgres.port, Secret(""))
    assert asked(server, "SELECT inet_client_addr() IS NULL") == [(True,)]


def test_server_when_nobody_is_there_then_it_is_unreachable(postgres: SourceServer) -> None:
    with pytest.raises(SourceUnreachable) as away:
        connect(login(postgres, port=free_port()), SOURCE)
    assert "sources.shop.client.host and port" in away.value.remedy
    assert not away.value.terminal


def test_server_when_the_network_is_silent_then_it_is_unreachable(
    postgres: SourceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.sources.postgresql.server.sockets.CONNECT_TIMEOUT_SECONDS", 0.2)
    network = SilentNetwork(postgres.host, postgres.port)
    network.silence()
    with closing(network), pytest.raises(SourceUnreachable):
        connect(login(postgres, port=network.port), SOURCE)


@pytest.mark.parametrize("mode", [TlsMode.DISABLE, TlsMode.PREFER])
@pytest.mark.parametrize("greeting", [b"J\0\0\0\x0a8.4.3\0", b"R\0\0\0\4", b"\xff" * 9])
def test_server_when_it_is_none_of_postgresql_then_the_error_says_so(mode: TlsMode, greeting: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            with listener.accept()[0] as accepted, suppress(ConnectionError):
                accepted.recv(8)
                accepted.sendall(greeting)
                while accepted.recv(1000):
                    pass

        greeting_thread = threading.Thread(target=greet)
        greeting_thread.start()
        port = listener.getsockname()[1]
        with pytest.raises(SourceUnreachable) as wrong:
            connect(ServerConfig("127.0.0.1", USER, "shop", port, tls=ServerTls(mode)), SOURCE)
        greeting_thread.join()
    assert "no PostgreSQL server" in wrong.value.found


def test_statement_when_its_parameters_are_wrong_then_it_is_no_fault_of_the_server(postgres: SourceServer) -> None:
    server = login(postgres)
    with (
        closing(connect(server, SOURCE)) as connection,
        pytest.raises(InterfaceError),
        server_errors("asking", server, SOURCE),
    ):
        rows(connection, "SELECT :wanted", given=1)


def test_statement_when_the_network_falls_silent_then_the_connection_is_lost(
    postgres: SourceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = SilentNetwork(postgres.host, postgres.port)
    server = login(postgres, port=network.port)
    with closing(network), closing(connect(server, SOURCE)) as connection:
        connection.socket.settimeout(0.2)
        network.silence()
        with pytest.raises(SourceConnectionLost), server_errors("asking", server, SOURCE):
            rows(connection, "SELECT 1")


def test_session_when_its_server_process_ends_then_the_connection_is_lost(postgres: SourceServer) -> None:
    server = login(postgres)
    with closing(connect(server, SOURCE)) as connection:
        postgres.run(f"SELECT pg_terminate_backend({connection.backend[0]}, 60000)")
        with pytest.raises(SourceConnectionLost), server_errors("asking", server, SOURCE):
            rows(connection, "SELECT 1")


def failed(connection: Connection, server: ServerConfig, statement: str) -> SourceError:
    with pytest.raises(SourceError) as caught, server_errors("asking", server, SOURCE, "SELECT", 'TABLE "t"'):
        rows(connection, statement)
    return caught.value


def test_statement_when_it_fails_then_its_sqlstate_says_how_and_no_value_is_told(postgres: SourceServer) -> None:
    postgres.run("CREATE TABLE t (id int)", "REVOKE ALL ON t FROM menura", database="shop")
    server = login(postgres)
    with closing(connect(server, SOURCE, statement_seconds=0.2)) as connection:
        slow = failed(connection, server, "SELECT pg_sleep(60)")
        assert isinstance(slow, SourceFailed)
        assert "57014" in slow.found
    with closing(connect(server, SOURCE)) as connection:
        denied = failed(connection, server, "SELECT * FROM public.t")
        assert isinstance(denied, SourceGrantMissing)
        assert denied.remedy == 'Run on the server: GRANT SELECT ON TABLE "t" TO "menura"'
        unreadable = failed(connection, server, "SELECT 'a secret'::int")
        assert "22P02" in unreadable.found
        assert "a secret" not in str(unreadable)
        assert rows(connection, "SELECT 1") == [(1,)]


def test_session_when_somebody_else_has_a_lock_then_waits_for_it_no_longer_than_it_says(
    postgres: SourceServer,
) -> None:
    postgres.run("CREATE TABLE t (id int)", database="shop")
    server = login(postgres)
    with (
        postgres.connect("shop", autocommit=False) as other,
        closing(connect(server, SOURCE, lock_seconds=0.1)) as connection,
    ):
        other.execute("LOCK TABLE t")
        assert "55P03" in failed(connection, server, "SELECT * FROM public.t").found


def test_session_when_its_user_has_other_settings_then_has_its_own(postgres: SourceServer) -> None:
    for name, value in (("datestyle", "German"), ("search_path", "public"), ("bytea_output", "escape")):
        postgres.run(f"ALTER ROLE menura SET {name} = '{value}'")
    try:
        for replication in (False, True):
            with closing(connect(login(postgres), SOURCE, replication=replication)) as connection:
                statement = "SELECT '2026-01-02'::date::text, '1 day'::interval::text, '\\x00'::bytea::text"
                assert rows(connection, statement) == [("2026-01-02", "1 day", "\\x00")]
                assert rows(connection, "SHOW search_path") == [("pg_catalog",)]
    finally:
        postgres.run("ALTER ROLE menura RESET ALL")


def test_session_when_a_policy_hides_rows_then_reading_fails(postgres: SourceServer) -> None:
    """Its dump would have fewer rows than its stream."""
    postgres.run(
        "CREATE TABLE t (id int)",
        "CREATE POLICY above_one ON t USING (id > 1)",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        database="shop",
    )
    server = login(postgres)
    with closing(connect(server, SOURCE)) as connection:
        assert "42501" in failed(connection, server, "SELECT * FROM public.t").found


def test_session_when_it_writes_by_mistake_then_the_server_refuses(postgres: SourceServer) -> None:
    postgres.run("CREATE TABLE t (id int)", "GRANT INSERT ON t TO menura", database="shop")
    server = login(postgres)
    with closing(connect(server, SOURCE)) as connection:
        assert "25006" in failed(connection, server, "INSERT INTO public.t VALUES (1)").found


def test_facts_when_asked_of_a_primary_and_its_standby_then_are_of_one_log() -> None:
    with source_server(is_other=True) as primary:
        primary.create_replication_user()
        with standby_of(primary) as standby, source_server() as stranger:
            primary.wait_for_replay(standby)
            stranger.create_replication_user()
            found = []
            for server in (primary, standby, stranger):
                with closing(connect(login(server), SOURCE)) as connection:
                    found.append(facts_of(connection, SOURCE))
                    assert setting(connection, "no.such_setting") is None
            assert [facts.is_standby for facts in found] == [False, True, False]
            assert found[0].same_log(found[1])
            assert found[0].timeline == found[1].timeline == 1
            assert not found[0].same_log(found[2])
            assert found[0].version_text.startswith(str(found[0].version // 10000))
            standby.promote()
            with closing(connect(login(standby), SOURCE)) as connection:
                promoted = facts_of(connection, SOURCE)
            assert (promoted.timeline, promoted.is_standby) == (2, False)
