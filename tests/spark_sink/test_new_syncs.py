"""A table whose sync begins again brings rows that the lake has: without a key nothing tells them apart."""

from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from spark_sink.lake import changelog as changelog_module
from spark_sink.lake import delta_table, merge
from spark_sink.reading import changelog
from tests.spark_sink.killing import Killed, kill_at
from tests.spark_sink.landing import Started, Table, Writer, apply_entries, delete, insert, lake_rows, table_id

KEYED = Table("t", {"id": pa.int32(), "v": pa.string()})
KEYLESS = Table("t", KEYED.columns, key=())


@pytest.mark.parametrize("is_one_batch", [True, False])
@pytest.mark.parametrize("table", [KEYED, KEYLESS], ids=["keyed", "keyless"])
def test_a_sync_when_it_begins_again_from_older_rows_then_no_row_of_a_table_without_a_key_is_there_twice(
    writer: Writer, lake: Path, table: Table, is_one_batch: bool
) -> None:
    writer.cut(Started(table, again=False), (table, [insert(id=1, v="a"), insert(id=2, v="b")]))
    if not is_one_batch:
        apply_entries(writer.folder, lake)
    writer.cut(Started(table))
    writer.cut((table, [insert(id=1, v="a"), insert(id=3, v="c")]))
    apply_entries(writer.folder, lake)
    kept = [] if table is KEYLESS else [{"id": 2, "v": "b"}]
    assert lake_rows(lake, table) == [{"id": 1, "v": "a"}, *kept, {"id": 3, "v": "c"}]
    assert "truncate" in changelog(str(lake), table_id(table))["_change_type"].to_pylist() or table is KEYED


@pytest.mark.parametrize("call", range(1, 5))
@pytest.mark.parametrize(
    ("module", "name"),
    [(merge, "merge_effect"), (merge, "empty"), (changelog_module, "append"), (delta_table, "write_deltalake")],
)
def test_a_kill_when_a_sync_begins_again_then_a_replay_leaves_each_row_once(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch, module: object, name: str, call: int
) -> None:
    writer.cut((KEYLESS, [insert(id=1, v="a"), insert(id=2, v="b")] * 2))
    writer.cut(Started(KEYLESS))
    writer.cut((KEYLESS, [insert(id=1, v="a"), insert(id=2, v="b")] * 2), (KEYLESS, [delete(id=2, v="b")]))
    with monkeypatch.context() as patched:
        kill_at(patched, module, name, call)
        with suppress(Killed):
            apply_entries(writer.folder, lake)
    for last in (1, 2, 3):
        assert [outcome.message for outcome in apply_entries(writer.folder, lake, last=last)] == [""]
    assert lake_rows(lake, KEYLESS) == [{"id": 1, "v": "a"}] * 2 + [{"id": 2, "v": "b"}]
