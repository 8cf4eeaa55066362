"""From a QUERY event to a `Statement`: its text in the client's charset, and its session's settings."""

from agent.sources.mysql.ddl.model import Server, Statement
from agent.sources.mysql.ddl.query_status import parse_status
from agent.sources.mysql.log.charsets import CharsetUnknown, charset_of_collation, decode_text
from agent.sources.mysql.log.events import EventBodyError, Query


def statement_of(query: Query, server: Server) -> Statement:
    """What was logged, decoded; raises `EventBodyError`."""
    status = parse_status(query.status, mariadb=server.mariadb)

    def charset(collation_id: int) -> str:
        try:
            return charset_of_collation(collation_id, mariadb=server.mariadb) if collation_id else "utf8mb4"
        except CharsetUnknown as unknown:
            raise EventBodyError(f"a statement whose charset is not known: {unknown}") from unknown

    client = charset(status.collation_client)
    explicit = status.explicit_defaults_for_timestamp
    return Statement(
        _decoded(query.text, client),
        query.database,
        error_code=query.error_code,
        sql_mode=status.sql_mode,
        charset_client=client,
        charset_connection=charset(status.collation_connection),
        charset_server=charset(status.collation_server),
        explicit_defaults_for_timestamp=True if explicit is None else explicit,
        time_zone=status.time_zone,
        without_effect=status.is_without_effect,
        may_be_made_by_server=not (server.mariadb and status.has_xid),
        is_without_xid=not (server.mariadb or status.has_xid or server.version < (8, 0, 0)),
    )


def _decoded(text: str, charset: str) -> str:
    if charset in ("utf8mb4", "utf8mb3", "ascii", "binary") or text.isascii():
        return text
    try:
        return decode_text(charset, text.encode("utf-8", "surrogateescape"))
    except UnicodeDecodeError:
        return text.encode("utf-8", "surrogateescape").decode("ascii", "surrogateescape")
