"""A worker's tables, as `agent.snapshot.reader` asks for them.

Comes in: a table, and where its rows begin and end. Goes out: a plan, rows in the form that the stream gives them, and
what they show as positions of the log. Nothing is durable.

A chunk's transaction sees the catalog as its rows were; the rows are read by the table's definition of now. An empty
SELECT keeps that as it is to the transaction's end and tells its columns: where these, or the table's files, are others
than the catalog's, the chunk is read again. For a statement that writes a table anew leaves nothing in it for snapshots
from before.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from menura.key_values import Key as KeyValues
from menura.v1 import snapshot_pb2
from pg8000.exceptions import DatabaseError

from agent.columnar.encode import SnapshotRows
from agent.errors import SourceGrantMissing
from agent.filter import Verdict
from agent.positions import PositionKind
from agent.runtime.state import SourceState
from agent.snapshot.failures import column_unsupported
from agent.snapshot.reader import KeyMissing, OrderChanged, TableMissing
from agent.snapshot.reading import NotYet
from agent.sources.postgresql.columns import Column
from agent.sources.postgresql.config import PostgresqlConfig
from agent.sources.postgresql.known_definitions import KnownDefinitions
from agent.sources.postgresql.positions import WalPosition, WalPositionKind
from agent.sources.postgresql.seen_transactions import SeenTransactions
from agent.sources.postgresql.server.connection import INSUFFICIENT_PRIVILEGE, sqlstate
from agent.sources.postgresql.server.definitions import TableDefinition, read_definitions
from agent.sources.postgresql.server.partitions import tell_partitions
from agent.sources.postgresql.server.quoting import quoted, quoted_table
from agent.sources.postgresql.server.type_names import FIRST_NORMAL_OBJECT_ID, read_type_names
from agent.sources.postgresql.snapshot.answers import Subject, subject_of
from agent.sources.postgresql.snapshot.keys import Key, Keys, keys_of
from agent.sources.postgresql.snapshot.load import LoadReader
from agent.sources.postgresql.snapshot.planning import plan_message
from agent.sources.postgresql.snapshot.positions import Positions
from agent.sources.postgresql.snapshot.ranges import MOST_RANGES
from agent.sources.postgresql.snapshot.results import RowsReading, TablePlan, definition_moved
from agent.sources.postgresql.snapshot.session import Session
from agent.sources.postgresql.snapshot.statements import (
    BY_INDEX,
    WITHOUT_TIMEOUT,
    bound_of,
    chunk_statement,
    lock_statement,
    read_bound,
    texts_of,
    values_of,
    whole_statement,
    with_operators_of,
    write_bound,
)
from agent.table_positions import Table

DOING = "dumping a table"
#: the definition by the catalog of now
_FILE_NODES = "SELECT oid, pg_relation_filenode(oid) FROM unnest(CAST(:oids AS oid[])) AS one (oid)"


@dataclass(frozen=True, slots=True)
class Prepared:
    """How a table is read while its definition and the order of its key are these."""

    definition: TableDefinition
    key: Key | None
    verdict: Verdict
    rows: TablePlan


@dataclass(frozen=True, slots=True)
class TableRows:
    """Of a chunk, or of a whole table."""

    reading: RowsReading
    key: Key | None

    def __iter__(self) -> Iterator[SnapshotRows]:
        return iter(self.reading)

    @property
    def source_bytes(self) -> int:
        return self.reading.result.source_bytes

    @property
    def upper(self) -> str:
        last = self.reading.result.last_key
        return bound_of(self.key, last) if self.key is not None and last else ""


class PostgresqlTableReader:
    """Over one session, and one more where a whole table is read from another server."""

    def __init__(
        self,
        config: PostgresqlConfig,
        slot: str,
        session: Session,
        seen: SeenTransactions,
        known: KnownDefinitions,
        state: SourceState,
    ) -> None:
        self._config = config
        self._known = known
        self._state = state
        self._session = session
        #: that of the table that is being read
        self._reading_by = session
        #: the position of the whole table that is being read
        self._whole_at: WalPosition | None = None
        self._positions = Positions(config, slot, session, seen)
        self._prepared: Prepared | None = None
        #: types of columns with their modifiers, and what these are made of, which never changes
        self._bases: dict[tuple[int, int], tuple[int, int]] = {}
        self.used: object | None = None

    @classmethod
    def open(
        cls,
        config: PostgresqlConfig,
        slot: str,
        seen: SeenTransactions,
        known: KnownDefinitions,
        state: SourceState,
        position_kind: PositionKind,
    ) -> "PostgresqlTableReader":
        """Raises a `SourceError`, and `DumpServerUnrelated`."""
        assert isinstance(position_kind, WalPositionKind)
        session = Session(config.client, config.name)
        try:
            return cls(config, slot, session, seen, known, state)
        except BaseException:
            session.close()
            raise

    @property
    def position_kind(self) -> WalPositionKind:
        return WalPositionKind.LSN

    @property
    def started(self) -> float:
        return self._session.facts.started

    def read_load(self) -> LoadReader:
        return LoadReader(self._config)

    def plan(self, order: snapshot_pb2.DumpOrder, *, looks_at_rows: bool, is_repeated: bool) -> snapshot_pb2.DumpPlan:
        """Raises `TableMissing`, `FilterColumnIsKey` and a `SourceError`."""
        self._positions.release()
        self.used = None
        table = (order.table.database, order.table.table)
        session = self._session
        with session.errors(DOING), session.transaction():
            definition = self._definition(session, table)
            self._hold(session, definition)
            self._check_key(definition)
            keys = self._keys(session, definition)
            self._check_schemas(definition, keys)
            why = self._why_whole(table, keys, is_repeated=is_repeated)
            key = None if why else next(iter(keys.found), None)
            self._prepare(definition, key)
            most = MOST_RANGES if looks_at_rows else 1
            return plan_message(session, self._config, order, definition, key, why, most)

    def _why_whole(self, table: Table, keys: Keys, *, is_repeated: bool) -> str:
        """Why the table is read in one snapshot although it has a key; '' where it need not be.

        An update that moves a row from a range not yet read into one that is lacks large values that it did not
        change, unless the whole former row is logged. Re-reads by chunks settle most tables, without a long
        transaction.
        """
        if is_repeated and self._state.is_partial(table):
            return (
                "read in one snapshot: updates of its key lack large values, and re-reads by chunks did not settle it"
            )
        return f"read in one snapshot, since its key may not be in order: {keys.unsure}" if keys.unsure else ""

    def key_kinds(self, table: Table, key: tuple[str, ...]) -> tuple[str, ...]:
        found = self._prepared_key(table, key)
        return found.kinds if found is not None else ()

    def bounds(self, table: Table, key: tuple[str, ...], values: Sequence[KeyValues]) -> list[str]:
        """Raises what `read_chunk` does, and `OrderChanged` where the key has less kinds."""
        if self._prepared_key(table, key) is None:  # it was planned over another connection
            with self._session.errors(DOING):
                definition = self._definition(self._session, table)
                self._prepare(definition, self._key(self._session, definition, key))
        found = self._prepared_key(table, key)
        if found is None or any(len(each) > len(found.kinds) for each in values):
            raise OrderChanged
        return [write_bound(found, texts_of(found, each)) if each else "" for each in values]

    def values(self, table: Table, key: tuple[str, ...], bound: str) -> KeyValues:
        found = self._prepared_key(table, key)
        if found is None:
            raise ValueError("a bound of another key")
        texts = read_bound(found, bound)
        return values_of(found, texts) if texts is not None else ()

    def _prepared_key(self, table: Table, key: tuple[str, ...]) -> Key | None:
        """Of the table that was planned or read last."""
        prepared = self._prepared
        if prepared is None or prepared.definition.table != table or prepared.key is None:
            return None
        return prepared.key if prepared.key.names == key else None

    def above(self, table: Table) -> frozenset[Table]:
        """What foreign keys do is logged."""
        del table
        return frozenset()

    @contextmanager
    def chunk(self, table: Table) -> Iterator[WalPosition]:
        """Raises `NotYet`."""
        del table  # what is visible is so in each
        self._positions.release()
        self.used = None
        with self._positions.chunk() as low:
            yield low

    def read_chunk(
        self, table: Table, key: tuple[str, ...], lower: str, upper: str, limit: int, received: Callable[[int], None]
    ) -> TableRows:
        """Raises `NotYet`, `TableMissing`, and `KeyMissing`, `OrderChanged` and `BoundInvalid` where it is not that
        key any more."""
        session = self._session
        with session.errors(DOING):
            definition = self._definition(session, table)
            found = self._key(session, definition, key)
            self._hold(session, definition)
            if not self._known.is_told(definition):
                raise NotYet("the table was altered, and the stream has not come to that yet")
            prepared = self._prepare(definition, found)
            statement = chunk_statement(definition, self._names(definition), found, lower, upper, limit)
            session.rows("; ".join(filter(None, (WITHOUT_TIMEOUT, BY_INDEX, with_operators_of(found)))))
        return TableRows(RowsReading(session, statement, prepared.rows, received), found)

    @contextmanager
    def snapshot(self, table: Table) -> Iterator[WalPosition]:
        """Raises `NotYet` and `DumpSnapshotFailed`."""
        self.used = None
        try:
            with self._positions.whole(table) as (shown, session):
                self._reading_by, self._whole_at = session, shown
                yield shown
        finally:
            self._reading_by, self._whole_at = self._session, None

    def read_table(self, table: Table, received: Callable[[int], None]) -> TableRows:
        """Raises `TableMissing`."""
        session = self._reading_by
        with session.errors(DOING):
            definition = self._definition(session, table)
            self._hold(session, definition)
            if self._whole_at is not None:
                self._known.read_whole(table, self._whole_at, definition)
            prepared = self._prepare(definition, None)
            statement = whole_statement(definition, self._names(definition))
            session.rows(WITHOUT_TIMEOUT)
        return TableRows(RowsReading(session, statement, prepared.rows, received), None)

    def high(self) -> WalPosition:
        """Raises `NotYet`."""
        return self._positions.high()

    def in_the_log(self, position: WalPosition) -> WalPosition:
        """There is one log."""
        return position

    def interrupt(self) -> None:
        """End what another thread waits for, at once."""
        self._reading_by.interrupt()
        self._session.interrupt()
        self._positions.interrupt()

    def end_on_server(self) -> None:
        self._reading_by.end_on_server()
        self._positions.end_on_server()

    def close(self) -> None:
        self._positions.close()
        self._reading_by.close()
        self._session.close()

    # --- how a table looks

    def _definition(self, session: Session, table: Table) -> TableDefinition:
        """As of the transaction's snapshot; raises `TableMissing`."""
        found = read_definitions(session.connection, [table], in_transaction=True).get(table)
        if found is None:
            raise TableMissing
        tell_partitions(session.connection, self._config.filter)
        if self._config.filter.is_vetoed(table):
            raise self._config.filter.veto.denial(table)
        self.used = found
        return found

    def _hold(self, session: Session, definition: TableDefinition) -> None:
        """Keep the table as it is until the transaction ends; raises `DefinitionMoved` where it is not as it was."""
        names = self._names(definition)
        try:
            found = session.columns(lock_statement(definition, names))
        except DatabaseError as failed:
            if sqlstate(failed) == INSUFFICIENT_PRIVILEGE:
                raise self._grant_missing(session, definition) from failed
            if subject_of(sqlstate(failed)) is Subject.DEFINITION:
                raise self._moved(definition, f"the server answered with SQLSTATE {sqlstate(failed)}") from failed
            raise
        if found != self._as_shown(session, definition, names):
            raise self._moved(definition, "it is another one, or its columns are of other types")
        nodes = session.rows(_FILE_NODES, oids=[oid for oid, _ in definition.storage]) if definition.storage else []
        if sorted((oid, node or 0) for oid, node in nodes) != list(definition.storage):
            raise self._moved(definition, "its rows were written anew, or removed")

    def _as_shown(
        self, session: Session, definition: TableDefinition, names: list[str]
    ) -> list[tuple[str, int, int, int]]:
        """Names, types, modifiers and the table as a result has them: of a domain what it is made of."""
        by_name = {attribute.name: attribute for attribute in definition.attributes}
        types = [(by_name[name].type_oid, by_name[name].modifier) for name in names]
        unknown = [one for one in types if one[0] >= FIRST_NORMAL_OBJECT_ID and one not in self._bases]
        if unknown:
            found = read_type_names(session.connection, [oid for oid, _ in unknown])
            self._bases |= {one: found.base(*one) for one in unknown}
        return [(name, *self._bases.get(one, one), definition.oid) for name, one in zip(names, types, strict=True)]

    def _moved(self, definition: TableDefinition, found: str) -> Exception:
        return definition_moved(self._config.name, definition.table, found)

    def _grant_missing(self, session: Session, definition: TableDefinition) -> SourceGrantMissing:
        """What is missing can't be asked in this transaction, which has failed."""
        schema, table, user = quoted(definition.schema), quoted_table(definition.table), quoted(session.server.user)
        return SourceGrantMissing(
            DOING,
            f"the server refused it (SQLSTATE {INSUFFICIENT_PRIVILEGE}): the user may not read {table}, or a policy of"
            " row security hides rows of it",
            data="Nothing of it was dumped; its stream goes on",
            remedy=f"Run on the server: GRANT USAGE ON SCHEMA {schema} TO {user}; GRANT SELECT ON {table} TO {user};"
            f" and where it has policies, as who may: ALTER ROLE {user} BYPASSRLS",
            source=self._config.name,
            database=definition.schema,
            table=definition.name,
        )

    def _check_key(self, definition: TableDefinition) -> None:
        verdict = self._verdict(definition)
        for name in definition.key:
            if verdict.ignores(name):
                undumped = "Nothing of it was dumped"
                raise self._config.filter.ignored_key(self._config.name, definition.table, name, DOING, undumped)

    def _check_schemas(self, definition: TableDefinition, keys: Keys) -> None:
        if not keys.unusable:
            return
        schemas, user = ", ".join(map(quoted, keys.unusable)), quoted(self._config.client.user)
        raise SourceGrantMissing(
            DOING,
            f"to read the table in the order of its key takes operators or types of schema {schemas}, which this user"
            " may not use",
            data="Nothing of it was dumped; its stream goes on",
            remedy=f"Run on the server: GRANT USAGE ON SCHEMA {schemas} TO {user}",
            source=self._config.name,
            database=definition.schema,
            table=definition.name,
        )

    def _keys(self, session: Session, definition: TableDefinition) -> Keys:
        return keys_of(session.connection, session.facts.version, definition, self._verdict(definition))

    def _verdict(self, definition: TableDefinition) -> Verdict:
        return self._config.filter.verdict(*definition.table)

    def _sent(self, definition: TableDefinition) -> tuple[Column, ...]:
        verdict = self._verdict(definition)
        columns = zip(definition.sent, definition.columns, strict=True)
        return tuple(column for one, column in columns if not verdict.ignores(one.name))

    def _names(self, definition: TableDefinition) -> list[str]:
        """The same, as the server calls them."""
        verdict = self._verdict(definition)
        return [one.name for one in definition.sent if not verdict.ignores(one.name)]

    def _key(self, session: Session, definition: TableDefinition, names: tuple[str, ...]) -> Key:
        """Raises `KeyMissing`."""
        found = next((one for one in self._keys(session, definition).found if one.names == names), None)
        if found is None:
            raise KeyMissing
        return found

    def _prepare(self, definition: TableDefinition, key: Key | None) -> Prepared:
        """Made once for the same definition; raises `TableColumnUnsupported`."""
        verdict, known = self._verdict(definition), self._prepared
        if known is not None and (known.definition, known.key, known.verdict) == (definition, key, verdict):
            return known
        try:
            rows = TablePlan(
                self._config.name,
                definition.table,
                self._sent(definition),
                len(key.columns) if key is not None else 0,
            )
        except ValueError as unsupported:
            raise column_unsupported(self._config.name, definition.table, str(unsupported)) from unsupported
        self._prepared = Prepared(definition, key, verdict, rows)
        return self._prepared
