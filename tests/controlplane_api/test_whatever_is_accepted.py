"""Whatever the wire accepts, the log and the database accept: ends of cuts and chunks that hypothesis makes up."""

from collections.abc import Callable
from itertools import count
from typing import TypeVar

import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from menura.bounds import MAX_NUMBER
from menura.landing import LandedCut, LogEntry, decode_entry, encode_entry
from menura.v1.changes_pb2 import Ahead, CutEnd, Position, TableEvent, TableStarted, TableStopped
from menura.v1.config_pb2 import TableName
from menura.v1.error_pb2 import Error
from menura.v1.snapshot_pb2 import ChunkEnd

from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.errors import StreamError
from gateway.registry import DumpDesired, DumpPlanned, HeldBack, KeyRange, SourceKey
from gateway.streams.dump_messages import landed_chunk
from gateway.wire.cut_end import Before, entry_bytes, read_cut_end
from tests.controlplane_api.facts import LANDING

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


@pytest.fixture
def accepted(registry: SqlRegistry) -> Callable[[str, list[LandedCut]], None]:
    """The log keeps these cuts of a new source, and the database follows it."""
    numbers = count(1)

    def accept(source: str, cuts: list[LandedCut]) -> None:
        number = next(numbers)
        entry = LogEntry(number, "gw-1", 1_700_000_000_000_000, tuple(cuts))
        assert decode_entry(encode_entry(entry)) == entry
        assert registry.apply_entry(LANDING, entry) == HeldBack()
        assert registry.committed(SourceKey("acme", source)).cut == cuts[-1].cut
        registry.desired(SourceKey("acme", source))
        registry.dumps(SourceKey("acme", source))

    return accept


@pytest.mark.long
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(made=st.lists(ends, min_size=1, max_size=3), chunks=few(chunk_ends))
def test_a_cut_when_the_wire_accepts_it_then_log_and_database_do(
    accepted: Callable[[str, list[LandedCut]], None],
    numbers: Callable[[], int],
    made: list[CutEnd],
    chunks: list[ChunkEnd],
) -> None:
    source = f"s{numbers()}"
    before = Before(RUN_TABLES, 0, 0, 0)
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
                "acme", source, 1, len(cuts) + 1, 0, "mysql", said.position, end.last_gsn, end.last_transaction_id,
                end.transaction_count, end.first_commit_timestamp_us, end.last_commit_timestamp_us, said.ahead,
                said.started, said.stopped, (), said.events, landed,
            )
        )  # fmt: skip
        before = Before(RUN_TABLES, end.last_gsn, end.last_gsn, end.last_transaction_id)
    if cuts:
        accepted(source, cuts)


@pytest.fixture
def numbers() -> Callable[[], int]:
    counted = count(1)
    return lambda: next(counted)


def _sent(message: M) -> M:
    """As it comes out of the wire."""
    return type(message).FromString(message.SerializeToString())
