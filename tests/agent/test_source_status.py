"""What a heartbeat says of a source, whatever its server has said."""

import pytest
from menura.bounds import MAX_INT64

from agent.filter import Filter
from agent.runtime.state import LogKept, SourceState
from agent.settings import SourceConfig


@pytest.mark.parametrize(
    ("said", "told"), [(None, None), (-16 << 20, 0), (0, 0), (MAX_INT64, MAX_INT64), (2**64, MAX_INT64)]
)
def test_status_when_a_server_says_a_number_out_of_bounds_then_it_is_told_within_them(
    said: int | None, told: int | None
) -> None:
    state = SourceState(SourceConfig(name="shop", kind="memory", filter=Filter()))
    state.log_kept = LogKept(said, said)
    status = state.status()
    assert (status.log_retention_seconds if status.HasField("log_retention_seconds") else None) == told
    assert (status.log_room_bytes if status.HasField("log_room_bytes") else None) == told


def test_status_when_the_server_is_away_then_how_long_it_keeps_its_log_is_not_told() -> None:
    state = SourceState(SourceConfig(name="shop", kind="memory", filter=Filter()))
    state.log_kept = LogKept(3_600, 1 << 20)
    assert state.status().log_room_bytes == 1 << 20
    assert state.status().log_is_unlimited is False
    state.end_is(None)
    status = state.status()
    assert not (status.HasField("log_retention_seconds") or status.HasField("log_room_bytes"))
    assert not status.HasField("log_is_unlimited")


def test_status_when_the_server_keeps_its_log_without_a_limit_then_that_is_told_and_is_not_unknown() -> None:
    state = SourceState(SourceConfig(name="shop", kind="memory", filter=Filter()))
    state.log_kept = LogKept(is_unlimited=True)
    status = state.status()
    assert status.HasField("log_is_unlimited") and status.log_is_unlimited
    assert not (status.HasField("log_retention_seconds") or status.HasField("log_room_bytes"))
