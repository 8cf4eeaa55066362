"""PostgreSQL's stream and SELECTs under hostile bytes: real ones of every type and kind of change, damaged.

A stream is a transaction of those in seeds/postgresql/changes.zst, whole or in progress (`blocks`), or an answer with
rows of answer.zst, of which some messages are damaged. What it may lead to is a typed error, or rows that are valid
Arrow data and the same however the bytes were cut. `make` records both anew.
"""

import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pyarrow as pa
from backports import zstd

from agent.sources.postgresql.native.blocks import BlockError
from agent.sources.postgresql.native.decoder import DecodeError, PgoutputDecoder, Reason, TablePlan
from agent.sources.postgresql.native.results import ResultError, ResultReason, RowsDecoder, RowsPlan
from agent.sources.postgresql.stream.relations import MessageBodyError, parse_message, parse_relation, parse_truncate
from agent.sources.postgresql.stream.streamed import StreamedTransactions, TooMuchStreamed
from tests.agent.postgresql.native.capture import plan_of, selected, streamed
from tests.agent.postgresql.native.values import DEFINITIONS, TYPES
from tests.fuzz.blocks import in_blocks, stream_of
from tests.fuzz.mutate import change
from tests.postgres import SourceServer, source_server

PREFIXES = CHANGES_PREFIX, BLOCKS_PREFIX, ANSWER_PREFIX = b"pgoutput\n", b"blocks\n", b"SELECT\n"
SEEDS = Path(__file__).parent / "seeds" / "postgresql"
KEY_TEXTS = 2

#: what hostile bytes may lead to
TYPED = (BlockError, DecodeError, ResultError, MessageBodyError, TooMuchStreamed)
#: message kind and length; head of WAL data; kind of pgoutput's message; relation
_BODY, _WAL_KIND, _WAL_BODY, _ROW_BODY = 5, 30, 31, 35
_ROWS = b"IUD"
_WAL_KINDS = b"BCRYTOMIUDSEcAXx"
_FRAME_KINDS = b"dcCEZNSAWTDx"
MOST_KEPT_BYTES = 16384
MOST_ENTRIES = 4096
MOST_ROWS = 4

Frames = list[bytes]
#: makes what lies behind the bytes of a decoder that was just fed unreadable; gives what makes it readable again
Guard = Callable[[PgoutputDecoder | RowsDecoder], Callable[[], None]]


def unguarded(_decoder: PgoutputDecoder | RowsDecoder) -> Callable[[], None]:
    return lambda: None


def _is_row(frame: bytes | bytearray) -> bool:
    return len(frame) > _ROW_BODY and frame[_WAL_KIND] in _ROWS


def frames(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = 1 + struct.unpack_from(">I", data, at + 1)[0]
        yield data[at : at + size]
        at += size


class PostgresqlTarget:
    """Mutates, and feeds what came of it."""

    def __init__(self, chance: Random, guard: Guard = unguarded) -> None:
        self._chance = chance
        self._guard = guard
        self._plans: dict[int, TablePlan] = {}
        self._entries: list[Frames] = []
        for unit in _transactions(_load("changes")):
            self._entries.append(unit)
            for frame in unit:
                if frame[_WAL_KIND : _WAL_KIND + 1] == b"R":
                    relation = parse_relation(frame[_WAL_BODY:])
                    self._plans[relation.oid] = plan_of(relation)
        self._whole = list(self._entries)
        self._answer = list(frames(_load("answer")))
        [wide] = [plan for plan in self._plans.values() if plan.table == "wide"]
        self._plan = RowsPlan([each.column for each in wide.columns], KEY_TEXTS)
        self._changed: Frames = []

    def changes(self) -> tuple[bytes, int]:
        """A damaged transaction, as it is kept in a file, and of how many messages."""
        chance = self._chance
        unit = list(chance.choice(self._entries))
        rows = [place for place, frame in enumerate(unit) if _is_row(frame)]
        for _ in range(chance.choice((1, 1, 2, 3))):
            place = chance.choice(rows) if rows and chance.random() < 0.8 else chance.randrange(len(unit))
            unit[place] = self._damaged(unit[place])
        if chance.random() < 0.05:
            unit.insert(chance.randrange(len(unit)), chance.choice(chance.choice(self._entries)))
        self._changed = unit
        return CHANGES_PREFIX + b"".join(unit), len(unit)

    def blocks(self) -> tuple[bytes, int]:
        """A damaged transaction in progress."""
        chance = self._chance
        unit = in_blocks(chance.choice(self._whole), chance)
        for _ in range(chance.choice((0, 1, 1, 2))):
            place = chance.randrange(len(unit))
            unit[place] = self._damaged(unit[place])
        if chance.random() < 0.1:
            unit.insert(chance.randrange(len(unit)), chance.choice(unit))
        return BLOCKS_PREFIX + b"".join(unit), len(unit)

    def keep(self) -> None:
        """What was made last has reached new code."""
        if sum(map(len, self._changed)) <= MOST_KEPT_BYTES and len(self._entries) < MOST_ENTRIES:
            self._entries.append(self._changed)

    def answer(self) -> tuple[bytes, int]:
        """A damaged answer."""
        chance = self._chance
        head, *rows = (frame for frame in self._answer if frame[:1] in b"TD")
        unit = [head, *chance.choices(rows, k=chance.randrange(1, MOST_ROWS)), *self._answer[-2:]]
        for _ in range(chance.choice((1, 1, 2))):
            place = chance.randrange(len(unit))
            unit[place] = self._damaged(unit[place])
        return ANSWER_PREFIX + b"".join(unit), len(unit)

    def _damaged(self, frame: bytes) -> bytes:
        chance, data = self._chance, bytearray(frame)
        first = _BODY
        if data[:1] == b"d" and len(data) > _ROW_BODY and chance.random() < 0.95:
            first = _ROW_BODY if _is_row(data) and chance.random() < 0.95 else _WAL_BODY
            if chance.random() < 0.03:
                data[_WAL_KIND] = chance.choice(_WAL_KINDS)
        elif chance.random() < 0.03:
            data[0] = chance.choice(_FRAME_KINDS)
        change(data, first, chance)
        if chance.random() < 0.995:
            data[1:_BODY] = struct.pack(">I", max(4, len(data) - 1))[: max(0, len(data) - 1)]
        return bytes(data)

    # --- feeding

    def run(self, data: bytes, *, slowly: bool = False) -> str:
        """What error the kept input leads to, '' for none; `slowly` with the properties that take longer."""
        prefix, _, stream = data.partition(b"\n")
        read = {CHANGES_PREFIX[:-1]: self._read_changes, BLOCKS_PREFIX[:-1]: self._read_blocks}.get(
            prefix, self._read_answer
        )
        error, batches = read(stream, at_once=False)
        if slowly:
            again = read(stream, at_once=True)
            assert again[0] == error, (again[0], error)
            ours, theirs = _rows(batches), _rows(again[1])
            assert ours == theirs, "the rows depend on how the bytes were cut"
        return error

    def _read_blocks(self, stream: bytes, *, at_once: bool) -> tuple[str, list[pa.RecordBatch]]:
        with closing(stream_of(stream, at_once=at_once)) as whole:
            return self._read_changes(stream, at_once=at_once, whole=whole)

    def _read_changes(
        self, stream: bytes, *, at_once: bool, whole: StreamedTransactions | None = None
    ) -> tuple[str, list[pa.RecordBatch]]:
        decoder = PgoutputDecoder(next_gsn=1, next_transaction_id=1, batch_rows=3)
        batches: list[pa.RecordBatch] = []
        for oid, plan in self._plans.items():
            decoder.define(oid, plan)

        def decode() -> bool:
            while True:
                unguard = self._guard(decoder)
                try:
                    reason = decoder.decode()
                finally:
                    unguard()
                if reason is Reason.BATCH_FULL:
                    batches.extend(pa.record_batch(batch.rows) for batch in decoder.take_batches())
                elif reason is Reason.MESSAGE:
                    self._handle(decoder)
                elif reason is not Reason.KEEPALIVE:
                    return reason is not Reason.NEED_BYTES

        if whole is None:
            error = _feed(decoder, stream, decode, at_once=at_once)
        else:
            error = _feed_whole(decoder, whole, decode)
        # Also after an error: a plan's batch would else keep its rows for the next decoder.
        for batch in decoder.take_batches():
            assert batch.first_gsn <= batch.last_gsn < decoder.next_gsn
            batches.append(pa.record_batch(batch.rows))
            batches.append(pa.record_batch(batch.transactions))
        decoder.take_transactions()
        return error, batches

    def _handle(self, decoder: PgoutputDecoder) -> None:
        message = decoder.message
        if message.kind == "R":
            relation = parse_relation(message.body)
            decoder.define(relation.oid, self._plans.get(relation.oid) or plan_of(relation))
        elif message.kind == "T":
            parse_truncate(message.body)
        elif message.kind == "M":
            parse_message(message.body)

    def _read_answer(self, stream: bytes, *, at_once: bool) -> tuple[str, list[pa.RecordBatch]]:
        decoder = RowsDecoder(self._plan, batch_rows=3, most_batch_bytes=1 << 20)
        batches: list[pa.RecordBatch] = []

        def decode() -> bool:
            while True:
                unguard = self._guard(decoder)
                try:
                    reason = decoder.decode()
                finally:
                    unguard()
                if reason is ResultReason.NEED_BYTES:
                    return False
                assert len(decoder.last_key or ()) in (0, KEY_TEXTS)
                if reason is not ResultReason.ERROR:
                    batches.append(pa.record_batch(decoder.take_rows()[1]))
                if reason is ResultReason.COMPLETE:
                    return True

        return _feed(decoder, stream, decode, at_once=at_once), batches


def _feed(decoder: PgoutputDecoder | RowsDecoder, stream: bytes, decode: Callable[[], bool], *, at_once: bool) -> str:
    """Message by message, so that a read beyond one leaves what was received; or `at_once`. The typed error, if any."""
    at = 0
    try:
        while at < len(stream):
            told = int.from_bytes(stream[at + 1 : at + _BODY], "big")
            size = len(stream) - at if at_once else min(1 + told, 1 << 20)
            space = decoder.writable()
            part = stream[at : at + min(size, len(space))]
            space[: len(part)] = part
            decoder.received(len(part))
            at += len(part)
            if decode():
                break
    except TYPED as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _feed_whole(decoder: PgoutputDecoder, whole: StreamedTransactions, decode: Callable[[], bool]) -> str:
    """What is handed on of transactions in progress."""
    try:
        while size := whole.receive_into(decoder.writable(), 0.0):
            decoder.received(size)
            if decode():
                break
    except TYPED as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _rows(batches: list[pa.RecordBatch]) -> str:
    """Of all batches, whatever their number."""
    for batch in batches:
        batch.validate(full=True)
    return repr(sorted(repr(row) for batch in batches for row in batch.to_pylist() if "_position" not in row))


# --- seeds


def _load(name: str) -> bytes:
    return zstd.decompress((SEEDS / f"{name}.zst").read_bytes())


def _transactions(data: bytes) -> Iterator[Frames]:
    unit: Frames = []
    for frame in frames(data):
        unit.append(frame)
        if frame[_WAL_KIND : _WAL_KIND + 1] == b"C":
            yield unit
            unit = []


def make() -> None:
    """Record the seeds."""
    with source_server() as server:
        server.create_replication_user("postgres")
        server.renew_database()
        changes = _recorded(server)
        texts = "wide.id::text AS k, 'ž'::text AS l"
        answer = selected(server, f"SELECT wide.*, {texts} FROM wide ORDER BY wide.id")
    SEEDS.mkdir(exist_ok=True)
    for name, data in (("changes", changes), ("answer", answer)):
        (SEEDS / f"{name}.zst").write_bytes(zstd.compress(data, 19))
        print(f"{name}: {sum(1 for _ in frames(data))} messages, {len(data)} bytes")


def _recorded(server: SourceServer) -> bytes:
    """Rows of every type, and every kind of change by every replica identity."""
    columns = ", ".join(f"c{number} {type_}" for number, type_ in enumerate(TYPES))
    values = list(TYPES.values())
    inserts = []
    for number in range(max(map(len, values))):
        row = ", ".join(of_type[number] if number < len(of_type) else "NULL" for of_type in values)
        inserts.append(f"INSERT INTO wide VALUES ({number + 1}, {row})")
    before = [*DEFINITIONS, f"CREATE TABLE wide (id integer PRIMARY KEY, {columns})"]
    changes = []
    for identity in ("DEFAULT", "FULL", "USING INDEX code"):
        table = identity.split()[0].lower()
        before += [
            f'CREATE TABLE "{table}" (id integer PRIMARY KEY, code text NOT NULL, n numeric(9,2), large text)',
            f'ALTER TABLE "{table}" ALTER large SET STORAGE EXTERNAL',
            *([f'CREATE UNIQUE INDEX code ON "{table}" (code)'] if "INDEX" in identity else []),
            f'ALTER TABLE "{table}" REPLICA IDENTITY {identity}',
        ]
        changes += [
            f"INSERT INTO \"{table}\" SELECT n, 'x' || n, n, repeat('large ', 400) FROM generate_series(1, 3) n",
            f'UPDATE "{table}" SET n = n + 0.5',
            f'UPDATE "{table}" SET id = -id, code = id WHERE id > 1',
            f'UPDATE "{table}" SET large = NULL WHERE id = 1',
            f'DELETE FROM "{table}"',
            f'TRUNCATE "{table}"',
        ]
    message = "SELECT pg_logical_emit_message(true, 'prefix', 'content')"
    return streamed(server, *inserts, "UPDATE wide SET id = id + 100", message, *changes, before=before)
