"""Preflight: whether a source's servers are set up so that nothing would be missed.

Comes in: a source's configuration. Goes out: the server's `Facts`, or the error of the first thing that is wrong; and
what else lacks for its tables. Each has the statement that puts it right. Changes nothing on the server.
"""

import logging
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass

from menura.errors import MenuraError

from agent.errors import PositionPurged, SourceGrantMissing
from agent.filter import KnownTable
from agent.sources.postgresql.config import FilteredBy, PostgresqlConfig
from agent.sources.postgresql.errors import PublicationLacking, PublicationUnfiltered, TablesUnidentified
from agent.sources.postgresql.positions import lsn_text
from agent.sources.postgresql.server.connection import (
    Connection,
    Facts,
    connect,
    facts_of,
    grant_missing,
    rows,
    server_errors,
    setting,
    setting_bytes,
)
from agent.sources.postgresql.server.publication import MOST_STATEMENTS, Lack, joined, lack_of, refused_changes
from agent.sources.postgresql.server.publication_filter import deviations, ignored_columns, is_kept, why_unlisted
from agent.sources.postgresql.server.publication_state import PublicationState, look
from agent.sources.postgresql.server.quoting import quoted, quoted_table
from agent.sources.postgresql.server.slot import (
    Slot,
    find_slot,
    slots_exhausted,
    standby_unable,
    wal_level_not_logical,
)
from agent.sources.postgresql.server.wire import slot_error
from agent.table_positions import Table

log = logging.getLogger("menura.policy")

DOING = "checking the server's settings"
READ_NOTHING = "Nothing was read"
#: from then on standbys give changes
_STANDBY_VERSION = 160000
_NOT_SYSTEM = "nspname NOT IN ('pg_catalog', 'information_schema') AND nspname !~ '^pg_(toast|temp)'"


def check_client(source: PostgresqlConfig) -> tuple[Facts, list[MenuraError]]:
    """The server that describes the tables: reachable and readable; and what of the filter does not fit its tables."""
    server = source.client
    with closing(connect(server, source.name)) as connection:
        with server_errors("reading what tables exist", server, source.name):
            facts = facts_of(connection, source.name)
            findings = check_filter(connection, source)
            ((tables, readable),) = rows(connection, _READABLE)
        if tables and not readable:
            raise grant_missing(
                "reading what tables exist",
                server,
                source.name,
                "SELECT",
                f"this user may read none of {tables} tables",
                "ALL TABLES IN SCHEMA ...",
            )
    return facts, findings


def check_filter(connection: Connection, source: PostgresqlConfig) -> list[MenuraError]:
    """Deny the tables that the filter's rules don't fit, and say what was found; inside `server_errors`."""
    return [*source.filter.check(_filtered_tables(connection, source), source.name)]


def advice(source: PostgresqlConfig) -> list[MenuraError]:
    """What would keep tables from being synced that the filter lets through: warnings, which stop nothing."""
    found: list[MenuraError] = []
    with (
        closing(connect(source.client, source.name)) as connection,
        server_errors("reading what may be read", source.client, source.name),
    ):
        names = [(str(schema), str(table)) for schema, table in rows(connection, _NAMES)]
        allowed = [table for table in names if source.filter.verdict(*table).allowed]
        found += _unreadable(connection, source, allowed)
    with (
        closing(connect(source.replication, source.name)) as connection,
        server_errors("reading what is published", source.replication, source.name),
    ):
        state = look(connection, source, allowed)
        found += [*_unpublished(state, source, allowed), *_unfiltered(state, source)]
    return found


@dataclass(frozen=True, slots=True)
class Replication:
    """The server whose changes are read, as the preflight finds it."""

    facts: Facts
    slot: Slot | None
    #: that it keeps for a slot; None: without a bound
    keep_bytes: int | None

    def __str__(self) -> str:
        """For one line of the preflight."""
        at = (
            f"at {lsn_text(self.slot.confirmed_flush_lsn)}"
            if self.slot and self.slot.confirmed_flush_lsn
            else "to come"
        )
        kept = "without a bound" if self.keep_bytes is None else f"up to {self.keep_bytes >> 20} MiB"
        return f"slot {at}, WAL kept for it {kept}"


def check_replication(source: PostgresqlConfig, slot: str) -> Replication:
    """It decodes, we may have it do so, and there is room for our slot and stream."""
    server = source.replication
    with closing(connect(server, source.name)) as connection, server_errors(DOING, server, source.name):
        facts = facts_of(connection, source.name)
        wal_level = setting(connection, "wal_level") or "unknown"
        if wal_level != "logical":
            raise wal_level_not_logical(DOING, source.name, wal_level)
        if facts.is_standby and facts.version < _STANDBY_VERSION:
            raise standby_unable(DOING, server, source.name)
        found = find_slot(connection, slot)
        ((slots, most),) = rows(connection, _SLOTS)
        keep_bytes = setting_bytes(connection, "max_slot_wal_keep_size")
    if found is None and slots >= most:
        raise slots_exhausted(DOING, server, source.name)
    _check_session(source)
    wrong = slot_error(found, server, source.name, found.confirmed_flush_lsn or 0) if found is not None else None
    if wrong is not None and not isinstance(wrong, PositionPurged):  # what a lost one means is the stream's to say
        raise wrong
    return Replication(facts, found, keep_bytes)


def _check_session(source: PostgresqlConfig) -> None:
    """That of a stream begins as ours will: it needs the privilege, a line of pg_hba.conf and a free WAL sender."""
    server = source.replication
    with (
        closing(connect(server, source.name, replication=True)) as connection,
        server_errors("beginning a session that replicates", server, source.name),
    ):
        rows(connection, "IDENTIFY_SYSTEM")


_SLOTS = "SELECT (SELECT count(*) FROM pg_replication_slots), current_setting('max_replication_slots')::int"
_TABLES = f"""
    FROM pg_class AS one JOIN pg_namespace AS of_schema ON of_schema.oid = relnamespace
    WHERE relkind IN ('r', 'p') AND relpersistence <> 't' AND NOT relispartition AND {_NOT_SYSTEM}
"""
_READABLE = f"""
    SELECT count(*), count(*) FILTER (
        WHERE has_schema_privilege(of_schema.oid, 'USAGE') AND has_any_column_privilege(one.oid, 'SELECT')
    ) {_TABLES}
"""
_NAMES = f"SELECT nspname::text, relname::text {_TABLES} ORDER BY 1, 2"
#: USAGE of the schema is missing, SELECT of columns, or the right to see rows that policies hide
_UNREADABLE = f"""
    SELECT nspname::text, relname::text, has_schema_privilege(of_schema.oid, 'USAGE'), row_security_active(one.oid),
        ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = one.oid AND attnum > 0 AND NOT attisdropped
              AND NOT has_column_privilege(one.oid, attnum, 'SELECT'))
    {_TABLES} AND (NOT has_schema_privilege(of_schema.oid, 'USAGE') OR NOT has_table_privilege(one.oid, 'SELECT')
                   OR row_security_active(one.oid))
    ORDER BY 1, 2
"""  # noqa: S608
#: what finds a row is the primary key, or what its owner has named instead
_FILTERED = f"""
    SELECT nspname::text, relname::text,
        ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = one.oid AND attnum > 0 AND NOT attisdropped),
        ARRAY(SELECT attname::text FROM pg_index CROSS JOIN unnest(indkey) WITH ORDINALITY AS part (number, place)
              JOIN pg_attribute ON attrelid = indrelid AND attnum = number
              WHERE indrelid = one.oid AND place <= indnkeyatts
                  AND CASE relreplident WHEN 'i' THEN indisreplident ELSE indisprimary END)
    {_TABLES} AND relname = ANY (CAST(:names AS text[]))
"""  # noqa: S608


def _unreadable(connection: Connection, source: PostgresqlConfig, allowed: Collection[Table]) -> list[MenuraError]:
    """One warning for all that can't be read, and one for those of which policies hide rows."""
    user, wanted = quoted(source.client.user), set(allowed)
    schemas: set[str] = set()
    tables: list[Table] = []
    hidden: list[Table] = []
    for schema, table, has_schema, is_hidden, columns in rows(connection, _UNREADABLE):
        if (schema, table) not in wanted:
            continue
        verdict = source.filter.verdict(schema, table)
        lacks_columns = any(not verdict.ignores(column) for column in columns)
        if not has_schema:
            schemas.add(schema)
        if lacks_columns:
            tables.append((schema, table))
        if is_hidden:
            hidden.append((schema, table))
    found: list[MenuraError] = []
    if schemas or tables:
        grants = [f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {user}" for schema in sorted(schemas)]
        if len(tables) <= MOST_STATEMENTS:
            grants += [f"GRANT SELECT ON {quoted_table(table)} TO {user}" for table in tables]
        else:
            named = sorted({schema for schema, _ in tables})
            grants += [f"GRANT SELECT ON ALL TABLES IN SCHEMA {quoted(schema)} TO {user}" for schema in named]
        lacking = f"this user may not read {_listed(tables)}" if tables else "this user may not use schemas"
        found.append(_unread(source, lacking, f"Run on the server: {'; '.join(grants)}"))
    if hidden:
        found.append(
            _unread(
                source,
                f"policies of row security hide rows of {_listed(hidden)} from this user",
                f"Run on the server, as who may: ALTER ROLE {user} BYPASSRLS",
            )
        )
    return found


def _unread(source: PostgresqlConfig, found: str, remedy: str) -> SourceGrantMissing:
    return SourceGrantMissing(
        "reading what may be read",
        found,
        data="Dumps of these tables fail until then",
        remedy=f"{remedy}; or keep the tables back in sources.{source.name}.filter",
        source=source.name,
    )


def _unpublished(state: PublicationState, source: PostgresqlConfig, tables: Collection[Table]) -> list[MenuraError]:
    """One warning for tables without an identity, and one for those that somebody else has to have published."""
    added = set(state.addable())
    lacks = {
        table: lack
        for table in tables
        if table not in added
        and table in state.relations
        and (lack := lack_of(state, source, state.relations[table])) is not None
    }
    found: list[MenuraError] = [*filter(None, [identity_lost(source, refused_changes(state, source, tables))])]
    for is_identity, kind in ((True, TablesUnidentified), (False, PublicationLacking)):
        of_kind = {table: lack for table, lack in lacks.items() if lack.is_identity is is_identity}
        if not of_kind:
            continue
        statements = joined(statement for lack in of_kind.values() for statement in lack.statements)
        whys = "; ".join(dict.fromkeys(lack.found for lack in of_kind.values()))
        found.append(
            kind(
                "reading what is published",
                f"{_listed(of_kind)}: {whys}",
                data="Syncs of these tables stop at their start until then",
                remedy=f"Run on the server, as the owner of the tables and of the publication: {statements}",
                source=source.name,
            )
        )
    return found


def identity_lost(source: PostgresqlConfig, refused: Mapping[Table, Lack]) -> TablesUnidentified | None:
    """The warning of published tables whose rows nothing identifies any more: who writes them fails."""
    if not refused:
        return None
    statements = joined(statement for lack in refused.values() for statement in lack.statements)
    whys = "; ".join(dict.fromkeys(lack.found for lack in refused.values()))
    return TablesUnidentified(
        "reading what is published",
        f"{_listed(refused)}: {whys}; they are published, so it does",
        data="Nothing is lost: what the server still takes, as INSERT, goes on to the lake",
        remedy=f"Run on the server, as the owner of the tables and of the publication: {statements}",
        source=source.name,
    )


def _unfiltered(state: PublicationState, source: PostgresqlConfig) -> list[MenuraError]:
    """One warning for what somebody else has to take out of it, and one for what the server can't leave out."""
    if source.filtered_by is FilteredBy.AGENT:
        return []
    foreign = {table: by for table, by in deviations(state, source).items() if not is_kept(state, table)}
    vetoed = [table for table in foreign if source.filter.is_vetoed(table)]
    if vetoed:
        log.warning(
            "published against the policy", extra={"fields": {"source": source.name, "tables": _listed(vetoed)}}
        )
    foreign = {table: by for table, by in foreign.items() if table not in vetoed}
    bare = {
        table: why
        for table, relation in state.relations.items()
        if table in state.published
        and source.filter.verdict(*table).allowed
        and ignored_columns(source, relation)
        and (why := why_unlisted(state, source, relation))
    }
    found: list[MenuraError] = []
    if foreign:
        statements = joined(f"BEGIN; {'; '.join(by)}; COMMIT" for by in foreign.values())
        found.append(
            _reaching_agent(
                source,
                f"{_listed(foreign)}: the publication has what the filter leaves out, and this user may not alter it",
                f"Run on the server, as the owner of the tables and of the publication: {statements}",
            )
        )
    if bare:
        whys = "; ".join(dict.fromkeys(bare.values()))
        remedy = f"Drop these tables in sources.{source.name}.filter if that is not enough"
        found.append(_reaching_agent(source, f"{_listed(bare)}: the server sends ignored columns: {whys}", remedy))
    return found


def _reaching_agent(source: PostgresqlConfig, found: str, remedy: str) -> PublicationUnfiltered:
    return PublicationUnfiltered(
        "reading what is published",
        found,
        data="The agent leaves it out on this host",
        remedy=remedy,
        source=source.name,
    )


def _listed(tables: Collection[Table]) -> str:
    shown = [".".join(table) for table in tables]
    more = len(shown) - MOST_STATEMENTS
    return ", ".join(shown[:MOST_STATEMENTS]) + (f" and {more} more tables" if more > 0 else "")


def _filtered_tables(connection: Connection, source: PostgresqlConfig) -> list[KnownTable]:
    """The tables that the filter's keys may mean."""
    names = source.filter.named()
    if not names:
        return []
    return [
        KnownTable(str(schema), str(table), columns, key_columns)
        for schema, table, columns, key_columns in rows(connection, _FILTERED, names=sorted(names))
    ]
