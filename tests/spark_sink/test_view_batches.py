"""Rows that a view's engine gives: in batches with few bytes, whatever is in a row, and all of them once."""

from pathlib import Path

import pyarrow as pa
import pytest

from spark_sink.views import view_table
from spark_sink.views.engine import engine
from spark_sink.views.query_main import BATCH_BYTES, BATCH_ROWS, parts_of
from tests.spark_sink.view_model import World

WIDE = "SELECT i, repeat('x', {}) AS t FROM range({}) r(i)"


def given(query: str) -> list[pa.RecordBatch]:
    with engine() as sql:
        return list(sql.reader(query))


def test_rows_when_they_are_wide_then_a_batch_has_few_bytes_and_none_is_lost() -> None:
    batches = given(WIDE.format(32 << 10, 2000))
    assert max(batch.nbytes for batch in batches) <= BATCH_BYTES
    assert sorted(key for batch in batches for key in batch["i"].to_pylist()) == list(range(2000))
    assert {len(text) for batch in batches for text in batch["t"].to_pylist()} == {32 << 10}


def test_rows_when_one_has_more_bytes_than_a_batch_then_it_is_a_batch_of_its_own() -> None:
    sizes = f"SELECT i, repeat('x', CASE WHEN i % 3 = 1 THEN {BATCH_BYTES + 1} ELSE 10 END) AS t FROM range(9) r(i)"
    batches = given(sizes)
    assert [batch.num_rows for batch in batches if batch.nbytes > BATCH_BYTES] == [1, 1, 1]
    assert sorted(key for batch in batches for key in batch["i"].to_pylist()) == list(range(9))


@pytest.mark.parametrize("most_bytes", [0, 100, 1 << 20])
def test_a_batch_when_it_is_cut_then_parts_are_bounded_and_its_rows_are_in_order(most_bytes: int) -> None:
    (batch,) = pa.table({"t": [str(number) * (1 + number % 7 * 9) for number in range(50)]}).to_batches()
    parts = list(parts_of(batch, most_bytes))
    assert all(part.num_rows == 1 or part.nbytes <= most_bytes for part in parts)
    assert [text for part in parts for text in part["t"].to_pylist()] == batch["t"].to_pylist()
    assert len(parts) == 1 or most_bytes < batch.nbytes


@pytest.mark.parametrize("rows", [0, 1, 200_000])
def test_rows_when_they_are_narrow_then_a_batch_has_many(rows: int) -> None:
    batches = given(WIDE.format(2, rows))
    assert [batch.num_rows for batch in batches[:-1]] == [BATCH_ROWS // 2048 * 2048] * (len(batches) - 1)
    assert sum(batch.num_rows for batch in batches) == rows


@pytest.mark.parametrize("most_bytes", [0, 100, 64 << 20])
def test_a_small_change_when_it_has_more_bytes_than_are_gathered_then_its_version_has_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    monkeypatch.setattr(view_table, "MOST_GATHERED_BYTES", most_bytes)
    monkeypatch.setattr("spark_sink.views.engine.BATCH_BYTES", 50)
    world = World(tmp_path, 3, stores=False)
    world.want(v=lambda named: f"SELECT o.id, o.note, o.qty FROM {named('orders')} o WHERE o.qty IS NOT NULL")
    for _ in range(4):
        world.step(25)
        assert world.held("v") == world.expected()["v"] == world.replayed("v")
