"""Ends of cuts and chunks that hypothesis makes up, and those cuts of them that the wire accepts."""

from collections.abc import Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message
from hypothesis import strategies as st
from menura.bounds import MAX_NUMBER
from menura.landing import LandedCut
from menura.types import ARROW_TYPES
from menura.v1.changes_pb2 import (
    Ahead,
    ColumnAfter,
    CutEnd,
    ForeignKey,
    Position,
    TableEvent,
    TableStarted,
    TableStopped,
)
from menura.v1.config_pb2 import TableName
from menura.v1.error_pb2 import Error
from menura.v1.snapshot_pb2 import ChunkEnd

from gateway.errors import StreamError
from gateway.registry import DumpDesired, DumpPlanned, KeyRange
from gateway.streams.dump_messages import landed_chunk
from gateway.wire.cut_end import Before, entry_bytes, read_cut_end

M = TypeVar("M", bound=Message)

DUMP = "0f8e2f4e-0000-4000-8000-000000000001"
KEY_RANGES = (KeyRange(0, "", ""),)
PLAN = DumpPlanned(("id",), KEY_RANGES, None, None, None, None, "")
ORDER = DumpDesired(DUMP, "shop", "orders", 0, False, 0, 0, 0, 1, PLAN, KEY_RANGES, 1)
TABLES = ("orders", "items", "a.b`c", "\N{PILE OF POO}" * 256, "\x01\x1b[2J\r\n")
RUN_TABLES = frozenset(("shop", table) for table in TABLES)

EDGES = (0, 1, 2, 2**31, 2**40, 2**53, MAX_NUMBER - 1, MAX_NUMBER, MAX_NUMBER + 1, 2**63 - 1)
int64s = st.one_of(st.integers(0, 100), st.sampled_from((*EDGES, -1, -(2**63))), st.integers(-(2**63), 2**63 - 1))
uint64s = st.one_of(st.integers(0, 100), st.sampled_from((*EDGES, 2**63, 2**64 - 1)), st.integers(0, 2**64 - 1))
uint32s = st.one_of(st.integers(0, 100), st.sampled_from((2**31, 2**32 - 1)))
#: what protobuf carries: everything but lone surrogates
texts = st.one_of(
    st.sampled_from(("", "a", "\0", "\x1b[2J\r\n", "\\u0000", '{"a": 1}', "\N{PILE OF POO}" * 300, "x" * 70_000)),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=40),
)
small = st.one_of(st.just("shop"), st.just("mysql"), texts)
tables = st.one_of(
    st.sampled_from(TABLES).map(lambda name: TableName(database="shop", table=name)),
    st.builds(TableName, database=texts, table=texts),
)
positions = st.builds(Position, kind=st.one_of(st.just("mysql"), small), text=texts, token=texts)
errors = st.builds(
    Error, code=texts, doing=texts, found=texts, data=texts, remedy=texts, table=texts, terminal=st.booleans()
)


def few(made: st.SearchStrategy) -> st.SearchStrategy[list]:
    return st.lists(made, max_size=3)


def maybe(made: dict[str, st.SearchStrategy], **fixed: object) -> st.SearchStrategy[dict]:
    """Some of the fields, so that what one of them breaks does not hide the others."""
    return st.fixed_dictionaries({}, optional=made).map(lambda facts: {**fixed, **facts})


events = maybe(
    {
        "table": tables, "kind": st.integers(0, 14), "gsn": int64s, "transaction_id": int64s,
        "commit_timestamp_us": int64s, "position": texts, "statement": texts, "removes_rows": st.booleans(),
        "new_name": tables, "dump": st.sampled_from(("", DUMP, "../x")), "removes_rows_before_gsn": int64s,
        "unlogged_changes": texts, "reread": st.booleans(), "most_rereads_per_hour": uint32s,
        "unchecked_from_gsn": int64s, "gap_from": texts, "gap_to": texts,
    },
    table=TableName(database="shop", table="orders"), kind=TableEvent.ALTERED,
).map(lambda facts: TableEvent(**facts))  # fmt: skip
ends = maybe(
    {
        "position": positions,
        "ahead": few(st.builds(Ahead, position=positions, tables=few(tables))),
        "started": few(st.builds(TableStarted, table=tables, position=positions, earlier_rows_missing=texts)),
        "stopped": few(st.builds(TableStopped, table=tables, position=positions, error=errors)),
        "last_gsn": int64s, "last_transaction_id": int64s, "transaction_count": uint32s,
        "first_commit_timestamp_us": int64s, "last_commit_timestamp_us": int64s, "events": few(events),
    },
    last_gsn=10, last_transaction_id=5,
).map(lambda facts: CutEnd(**facts))  # fmt: skip
chunk_ends = maybe(
    {
        "chunk": uint64s, "range": uint32s, "lower": texts, "upper": texts, "last_of_range": st.booleans(),
        "row_count": uint64s, "source_bytes": uint64s, "read_at_us": int64s, "read_us": uint64s, "position": texts,
    },
    dump=DUMP, table=TableName(database="shop", table="orders"), chunk=1, upper='["9"]', last_of_range=True,
).map(lambda facts: ChunkEnd(**facts))  # fmt: skip


def accepted_cuts(
    source: str, made: Sequence[CutEnd], chunks: Sequence[ChunkEnd] = (), after_cut: int = 0, after_gsn: int = 0
) -> list[LandedCut]:
    """Cuts of a source, without files, behind its cut and row number of before."""
    before = Before(RUN_TABLES, after_gsn, after_gsn, 0)
    cuts: list[LandedCut] = []
    for end in map(_sent, made):
        try:
            said = read_cut_end(end, before, 1)
            entry_bytes(said)
            landed = tuple(landed_chunk(_sent(chunk), ORDER) for chunk in chunks)
        except StreamError:
            continue
        cuts.append(
            LandedCut(
                "acme", source, 1, after_cut + len(cuts) + 1, 0, "mysql", said.position, end.last_gsn,
                end.last_transaction_id, end.transaction_count, end.first_commit_timestamp_us,
                end.last_commit_timestamp_us,
                said.ahead, said.started, said.stopped, (), said.events, landed,
            )
        )  # fmt: skip
        before = Before(RUN_TABLES, end.last_gsn, end.last_gsn, end.last_transaction_id)
    return cuts


def _sent(message: M) -> M:
    """As it comes out of the wire."""
    return type(message).FromString(message.SerializeToString())


names = st.one_of(
    st.sampled_from(
        ("id", "note", "amount", "_gsn", "_unrepresentable", 'a`b"c.d', "\x1b[2J", "x" * 256, "\N{PILE OF POO}")
    ),
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=20),
)
formats = st.sampled_from((*ARROW_TYPES, "d:38,38", "d:1,0", "d:10,2"))
literals = st.sampled_from(("", "0", "-1", "1e400", "2026-02-30", "9999-12-31 23:59:59.999999", "x" * 300, "\1\n"))
columns = st.builds(
    ColumnAfter, name=names, source_type=texts, arrow_format=formats, key=st.sampled_from((0, 0, 1, 2)),
).flatmap(
    lambda column: st.one_of(
        st.just(column),
        literals.map(lambda text: _with(column, text=text)),
        literals.map(lambda text: _with(column, unrepresentable=text)),
        st.sampled_from(({"is_null": True}, {"is_unknown": True})).map(lambda said: _with(column, **said)),
        names.map(lambda name: _with(column, renamed_from=name)),
    )
)  # fmt: skip
foreign_keys = st.builds(
    lambda name, own, parent, of_parent, action: ForeignKey(
        name=name, columns=[own], parent=TableName(database="shop", table=parent), parent_columns=[of_parent],
        on_delete=action, on_update=action, comparisons=[{}],
    ),
    names, names, st.sampled_from(TABLES), names, st.sampled_from((ForeignKey.CASCADE, ForeignKey.SET_NULL)),
)  # fmt: skip
#: each kind with what it needs, of table `orders`
telling_events = st.one_of(
    st.builds(dict, kind=st.sampled_from(("CREATED", "ALTERED", "SWAPPED")), columns=few(columns), statement=texts),
    st.builds(dict, kind=st.just("ALTERED"), columns=few(columns), unlogged_changes=texts, removes_rows=st.booleans()),
    st.builds(dict, kind=st.sampled_from(("DROPPED", "TRUNCATED")), removes_rows=st.booleans(), statement=texts),
    st.builds(dict, kind=st.just("RENAMED"), new_name=tables),
    st.builds(dict, kind=st.just("ROWS_UNLOGGED"), unlogged_changes=st.just("why"), position=texts),
    st.builds(dict, kind=st.just("LOG_GAP"), unlogged_changes=st.just("why"), gap_from=texts, gap_to=texts),
    st.builds(dict, kind=st.just("FOREIGN_KEYS"), foreign_keys=few(foreign_keys)),
    st.builds(dict, kind=st.just("FOREIGN_KEYS_UNCHECKED"), unchecked_from_gsn=st.integers(1, 9)),
    st.builds(dict, kind=st.just("DUMPED"), dump=st.just(DUMP), removes_rows=st.booleans()),
    st.builds(dict, kind=st.sampled_from(("DUMP_STARTED", "VERIFICATION_STARTED", "VERIFIED")), dump=st.just(DUMP)),
)


def _with(column: ColumnAfter, **said: object) -> ColumnAfter:
    made = ColumnAfter(**said)
    made.MergeFrom(column)
    return made


def telling_end(told: Sequence[dict[str, Any]], first_gsn: int) -> CutEnd:
    """These events of table `orders`, numbered from there on."""
    table = TableName(database="shop", table="orders")
    return CutEnd(
        last_gsn=first_gsn + len(told),
        last_transaction_id=first_gsn,
        transaction_count=1,
        events=[TableEvent(**{"table": table, "gsn": first_gsn + at, **facts}) for at, facts in enumerate(told)],
    )
