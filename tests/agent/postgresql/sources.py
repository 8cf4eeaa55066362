"""Servers of tests as the configuration of a source names them."""

from collections.abc import Mapping

from agent.config_entries import Secret
from agent.filter import Filter
from agent.sources.postgresql.config import FilteredBy, PostgresqlConfig, ServerConfig, ServerTls, TlsMode
from agent.sources.postgresql.identifiers import IDENTIFIERS
from tests.postgres import SourceServer

SOURCE = "shop"
USER = "menura"
PASSWORD = "menura-secret"


def login(
    running: SourceServer,
    user: str = USER,
    password: str = PASSWORD,
    *,
    database: str = "shop",
    port: int = 0,
    tls: TlsMode = TlsMode.PREFER,
    ca: str = "",
) -> ServerConfig:
    return ServerConfig(
        running.host,
        user,
        database,
        port or running.port,
        Secret(password),
        ServerTls(tls, ca or str(running.ca or "")),
    )


def config_of(
    running: SourceServer,
    *,
    client: ServerConfig | None = None,
    slot: str = "menura_test",
    policy: Filter | None = None,
    filtered_by: FilteredBy = FilteredBy.AGENT,
) -> PostgresqlConfig:
    """A source whose changes come from the server, and its rows too unless `client` is another one."""
    server = login(running)
    return PostgresqlConfig(
        name=SOURCE,
        kind="postgresql",
        filter=policy or Filter(identifiers=IDENTIFIERS),
        client=client or server,
        replication=server,
        slot=slot,
        filtered_by=filtered_by,
    )


def entries(server: ServerConfig) -> dict[str, object]:
    """Of `client` or `replication` in a configuration file."""
    return {
        "host": server.host,
        "port": server.port,
        "user": server.user,
        "password": server.password.reveal(),
        "database": server.database,
        "tls": {"mode": str(server.tls.mode)} | ({"ca": server.tls.ca} if server.tls.ca else {}),
    }


def source(running: SourceServer, **others: object) -> Mapping[str, object]:
    """The source's entries, for `write_config`."""
    return {"kind": "postgresql", "client": entries(login(running)), **others}
