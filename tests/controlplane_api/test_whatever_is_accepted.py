"""Whatever the wire accepts, the log and the database accept: ends of cuts and chunks that hypothesis makes up."""

from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from menura.landing import LandedCut, LogEntry, decode_entry, encode_entry
from menura.v1.changes_pb2 import CutEnd
from menura.v1.snapshot_pb2 import ChunkEnd

from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import HeldBack, SourceKey
from tests.accepted_cuts import accepted_cuts, chunk_ends, ends, few
from tests.controlplane_api.facts import LANDING


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
    if cuts := accepted_cuts(source, made, chunks):
        accepted(source, cuts)


@pytest.fixture
def numbers() -> Callable[[], int]:
    counted = count(1)
    return lambda: next(counted)
