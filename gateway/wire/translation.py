"""Between the wire's messages and the values of landing and the registry; bounds what an agent may say.

Pure: messages in, values out.
"""

from collections.abc import Iterable

from menura.bounds import (
    MAX_KEY_COLUMNS,
    MAX_NAME_CHARS,
    MAX_NUMBER,
    MAX_SYNCED_TABLES,
    MAX_TEXT_CHARS,
    clean_int64,
    clean_text,
)
from menura.errors import one_line
from menura.landing import LandedAhead, LandedPosition, LandedStart, LandedStop
from menura.naming import is_identity
from menura.v1.catalog_pb2 import Cartography, TableCard
from menura.v1.changes_pb2 import Ahead, CutEnd, Position, Replicate, TableStarted, TableSync
from menura.v1.config_pb2 import (
    DesiredState,
    EffectiveSources,
    EffectiveState,
    EffectiveVersion,
    Heartbeat,
    SourceHello,
    TableName,
    TableState,
)
from menura.v1.config_pb2 import Withheld as WithheldSaid
from menura.v1.error_pb2 import Error

from gateway.errors import OutOfSequence, PayloadInvalid, TablesTooMany
from gateway.registry import (
    ColumnSeen,
    ConfigurationSeen,
    ForeignKeySeen,
    KeySeen,
    OtherServerSeen,
    Problem,
    SourceCommitted,
    SourceDesired,
    SourceHealth,
    SourceSeen,
    TableDesired,
    TableEffective,
    TableSeen,
    VersionSeen,
    Withheld,
)

#: of a source
MOST_WARNINGS = 20
#: of a table
MAX_FOREIGN_KEYS = 256
#: of a table's card: servers have tables of up to 4,096 columns
MAX_COLUMNS = 8_192
MAX_KEYS = 8_192
#: of it in all: the labels of an enumeration alone may take 64 KiB and more
MAX_CARD_BYTES = 8 << 20
#: of an agent's version, its package's form and its machine
MAX_WORD_CHARS = 64
#: of a position; its text may be longer
MAX_TOKEN_CHARS = 65_536


def problem_from(error: Error, at_us: int, most_chars: int = MAX_TEXT_CHARS) -> Problem:
    """As an operator reads it. An agent's error may be of 16 MiB: what is looked at of it sign by sign is its
    beginning."""
    code, message = clean_text(error.code, MAX_NAME_CHARS), clean_text(one_line(error, most_chars))
    return Problem(code, message, error.terminal, clean_int64(error.at_us) or at_us)


def optional_problem(holder: EffectiveState | TableState, at_us: int) -> Problem | None:
    return problem_from(holder.error, at_us) if holder.HasField("error") else None


def warnings_of(state: EffectiveState, at_us: int) -> tuple[Problem, ...]:
    """The first ones of what does not keep the source from being read."""
    return tuple(problem_from(warning, at_us) for warning in state.warnings[:MOST_WARNINGS])


def source_seen(sources: Iterable[SourceHello]) -> dict[str, SourceSeen]:
    """Sources of a Hello by name; raises `PayloadInvalid` where one has none."""
    found = {
        source.source: SourceSeen(
            source.source,
            _flavor(source.flavor),
            clean_text(source.server_version, MAX_NAME_CHARS),
            clean_text(source.address, MAX_NAME_CHARS),
            clean_text(source.policy_sha256, MAX_NAME_CHARS),
            source.started,
        )
        for source in sources
    }
    for name in found:
        if not is_identity(name):
            raise PayloadInvalid("opening a stream", "a source that is no name", remedy="Use a-z, 0-9, '-', '_'")
    return found


def configurations_seen(state: EffectiveSources, at_us: int) -> tuple[ConfigurationSeen, ...]:
    return tuple(
        ConfigurationSeen(
            one.source,
            clean_int64(one.generation),
            clean_text(one.sha256, MAX_NAME_CHARS),
            problem_from(one.error, at_us) if one.HasField("error") else None,
        )
        for one in state.sources
        if is_identity(one.source)
    )


def version_seen(state: EffectiveVersion, at_us: int, session: str = "") -> VersionSeen:
    """Raises `PayloadInvalid` for a state that this gateway does not know: an agent is no newer than its gateway."""
    known = EffectiveVersion.State.DESCRIPTOR.values_by_number
    if state.state not in known or not state.state:
        raise PayloadInvalid("reading an agent's version", f"state {state.state}, which is none")
    return VersionSeen(
        generation=min(clean_int64(state.generation), MAX_NUMBER),  # orders are counted on from it
        version=clean_text(state.version, MAX_WORD_CHARS),
        format=clean_text(state.format, MAX_WORD_CHARS),
        machine=clean_text(state.machine, MAX_WORD_CHARS),
        state=known[state.state].name,
        downloaded_bytes=clean_int64(state.downloaded_bytes),
        problem=problem_from(state.error, at_us) if state.HasField("error") else None,
        session=session,
    )


def _flavor(flavor: str) -> str:
    """What kind of server it is, in the source's word; empty: it was not reached yet."""
    if flavor and not is_identity(flavor):
        raise PayloadInvalid("reading a source's flavor", "a flavor that is no plain name")
    return flavor


def source_health(heartbeat: Heartbeat, at_us: int) -> list[SourceHealth]:
    return [
        SourceHealth(
            source=status.source,
            read_position=clean_text(status.read_position),
            source_position=clean_text(status.source_position),
            lag_us=clean_int64(status.lag_us) if status.HasField("lag_us") else None,
            rows=clean_int64(status.rows),
            transactions=clean_int64(status.transactions),
            read_bytes=clean_int64(status.read_bytes),
            sent_bytes=clean_int64(status.sent_bytes),
            credit_wait_us=clean_int64(status.credit_wait_us),
            problem=problem_from(status.error, at_us) if status.HasField("error") else None,
            decode_cpu_us=clean_int64(status.decode_cpu_us),
            restarts=clean_int64(status.restarts),
            credit_bytes=clean_int64(status.credit_bytes) if status.HasField("credit_bytes") else None,
            log_retention_seconds=(
                clean_int64(status.log_retention_seconds) if status.HasField("log_retention_seconds") else None
            ),
            log_room_bytes=clean_int64(status.log_room_bytes) if status.HasField("log_room_bytes") else None,
            log_is_unlimited=status.log_is_unlimited if status.HasField("log_is_unlimited") else None,
        )
        for status in heartbeat.sources
    ]


def tables_effective(state: EffectiveState, at_us: int) -> list[TableEffective]:
    known = TableState.State.DESCRIPTOR.values_by_number
    return [
        TableEffective(
            *table_name(table.table),
            state=known[table.state].name if table.state in known else "STATE_UNSPECIFIED",
            problem=optional_problem(table, at_us),
            ignored_columns=tuple(clean_text(column, MAX_NAME_CHARS) for column in table.ignored_columns),
            most_rereads_per_hour=table.most_rereads_per_hour,
            withheld=_withheld(table.withheld) if table.HasField("withheld") else None,
        )
        for table in state.tables
    ]


def _withheld(said: WithheldSaid) -> Withheld:
    return Withheld(clean_text(said.memory, MAX_NAME_CHARS), said.columns, clean_int64(said.freed))


def other_server(state: EffectiveState) -> OtherServerSeen | None:
    """What is there in place of the server that was read."""
    if not state.HasField("other_server"):
        return None
    seen = state.other_server
    return OtherServerSeen(
        identity=clean_text(seen.identity, MAX_NAME_CHARS),
        server=clean_text(seen.server, MAX_NAME_CHARS),
        former_server=clean_text(seen.former_server, MAX_NAME_CHARS),
        lake_position=clean_text(seen.lake_position),
        oldest_position=clean_text(seen.oldest_position),
        end_position=clean_text(seen.end_position),
        goes_on_at=clean_text(seen.goes_on_at),
        lacking=clean_text(seen.lacking),
        lacking_transactions=clean_int64(seen.lacking_transactions) if seen.HasField("lacking_transactions") else None,
    )


def tables_seen(part: Cartography) -> list[TableSeen]:
    _flavor(part.flavor)
    return [_table_seen(card) for card in part.tables]


def check_cards(part: Cartography) -> None:
    """Before anything of them is kept. Raises `PayloadInvalid`."""
    for card in part.tables:
        most_names = max((len(key.columns) for key in card.keys), default=0)
        longest = max((len(column.name) for column in card.columns), default=0)
        for found, most, what in (
            (len(card.columns), MAX_COLUMNS, "columns"),
            (len(card.keys), MAX_KEYS, "keys"),
            (most_names, MAX_KEY_COLUMNS, "columns in a key"),
            (longest, MAX_NAME_CHARS, "characters in a column's name"),
            (card.ByteSize(), MAX_CARD_BYTES, "bytes"),
        ):
            if found > most:
                table = clean_text(f"{card.table.database}.{card.table.table}", MAX_NAME_CHARS)
                raise PayloadInvalid("reading a cartography", f"table {table} with {found} {what}, more than {most}")


def _table_seen(card: TableCard) -> TableSeen:
    return TableSeen(
        *table_name(card.table),
        engine=clean_text(card.engine, MAX_NAME_CHARS),
        collation=clean_text(card.collation, MAX_NAME_CHARS),
        estimated_rows=clean_int64(card.estimated_rows) if card.HasField("estimated_rows") else None,
        size_bytes=clean_int64(card.size_bytes) if card.HasField("size_bytes") else None,
        columns=tuple(
            ColumnSeen(
                clean_text(column.name, MAX_NAME_CHARS),
                clean_text(column.column_type),
                column.nullable,
                clean_text(column.charset, MAX_NAME_CHARS),
                column.ignored,
                column.generated,
            )
            for column in card.columns
        ),
        keys=tuple(
            KeySeen(
                clean_text(key.name, MAX_NAME_CHARS),
                key.unique,
                tuple(clean_text(name, MAX_NAME_CHARS) for name in key.columns),
            )
            for key in card.keys
        ),
        denied=card.denied,
        foreign_keys=tuple(
            ForeignKeySeen(
                clean_text(key.name, MAX_NAME_CHARS),
                tuple(clean_text(name, MAX_NAME_CHARS) for name in key.columns[:MAX_KEY_COLUMNS]),
                table_name(key.parent),
                tuple(clean_text(name, MAX_NAME_CHARS) for name in key.parent_columns[:MAX_KEY_COLUMNS]),
            )
            for key in card.foreign_keys[:MAX_FOREIGN_KEYS]
        ),
        more_foreign_keys=card.more_foreign_keys + max(0, len(card.foreign_keys) - MAX_FOREIGN_KEYS),
    )


def table_name(name: TableName) -> tuple[str, str]:
    for part in (name.database, name.table):
        if not 0 < len(part) <= MAX_NAME_CHARS or "\0" in part:
            raise PayloadInvalid("reading a table's name", f"one of {len(part)} characters, or with a NUL")
    return name.database, name.table


def landed_position(position: Position) -> LandedPosition:
    is_safe = not (position.kind and not is_identity(position.kind)) and "\0" not in position.text + position.token
    if not is_safe or len(position.token) > MAX_TOKEN_CHARS:
        raise PayloadInvalid("reading a position", "a position that no source has")
    return LandedPosition(position.kind, position.text, position.token)


def landed_ahead(ahead: Iterable[Ahead]) -> tuple[LandedAhead, ...]:
    return tuple(
        LandedAhead(landed_position(part.position), tuple(table_name(table) for table in part.tables)) for part in ahead
    )


def landed_starts(end: CutEnd, after_gsn: int) -> tuple[LandedStart, ...]:
    return tuple(_landed_start(start, after_gsn, end.last_gsn) for start in end.started)


def _landed_start(start: TableStarted, after_gsn: int, last_gsn: int) -> LandedStart:
    if start.gsn and not after_gsn < start.gsn <= last_gsn:
        found = f"a start with row number {start.gsn}, in a cut from {after_gsn + 1} to {last_gsn}"
        raise OutOfSequence("reading a cut's starts", found)
    missing = clean_text(start.earlier_rows_missing)
    return LandedStart(*table_name(start.table), landed_position(start.position), missing, start.gsn)


def landed_stops(end: CutEnd, at_us: int) -> tuple[LandedStop, ...]:
    stops = []
    for stop in end.stopped:
        problem = problem_from(stop.error, at_us)
        stops.append(LandedStop(*table_name(stop.table), landed_position(stop.position), problem.code, problem.message))
    return tuple(stops)


def wire_position(position: LandedPosition) -> Position:
    return Position(kind=position.kind, text=position.text, token=position.token)


def desired_state(desired: SourceDesired) -> DesiredState:
    """Raises `TablesTooMany`."""
    _check_count(desired)
    tables = [TableName(database=table.database, table=table.table) for table in desired.tables]
    return DesiredState(source=desired.source, generation=desired.generation, tables=tables, notice=desired.notice)


def _check_count(desired: SourceDesired) -> None:
    if len(desired.tables) > MAX_SYNCED_TABLES:
        raise TablesTooMany(
            "asking an agent for tables",
            f"{len(desired.tables)} of the source are to be synced, and an agent takes {MAX_SYNCED_TABLES}",
            data="What is committed stays, and nothing more of the source lands",
            remedy="Stop some, or give databases of the server to a source of their own",
            source=desired.source,
        )


def replicate(
    desired: SourceDesired, committed: SourceCommitted, epoch: int, cut_interval_ms: int, cut_bytes: int
) -> Replicate:
    """Where and what to read, from what is committed and desired. Raises `TablesTooMany`."""
    _check_count(desired)
    return Replicate(
        generation=desired.generation,
        lease_epoch=epoch,
        next_cut=committed.cut + 1,
        next_gsn=committed.last_gsn + 1,
        next_transaction_id=committed.last_transaction_id + 1,
        position=wire_position(committed.position) if committed.position is not None else None,
        ahead=[
            Ahead(
                position=wire_position(part.position),
                tables=[TableName(database=database, table=table) for database, table in part.tables],
            )
            for part in committed.ahead
        ],
        tables=[_table_sync(table) for table in desired.tables],
        cut_interval_ms=cut_interval_ms,
        cut_bytes=cut_bytes,
        accepted_server=desired.accepted_server,
    )


def _table_sync(table: TableDesired) -> TableSync:
    sync = TableSync(
        table=TableName(database=table.database, table=table.table),
        unlogged_gsn=table.unlogged_gsn,
        dump_gsn=table.dump_gsn,
        compared_gsn=table.compared_gsn,
        earlier_rows_missing=table.earlier_rows_missing,
        was_synced=table.was_synced,
    )
    if table.start_position is not None:
        sync.position.CopyFrom(wire_position(table.start_position))
    elif table.start_text:
        sync.position_text = table.start_text
        if table.altered_from is not None:
            sync.altered_from.CopyFrom(wire_position(table.altered_from))
            sync.altered_why = table.altered_why
    elif table.start_oldest:
        sync.oldest = True
    elif table.start_now:
        sync.now = True
    elif table.start_dump:
        sync.dump = table.start_dump
    return sync
