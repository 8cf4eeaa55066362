"""What `menura sink run` makes of its arguments."""

from dataclasses import replace
from pathlib import Path

import pytest

from spark_sink.ingest.settings import SinkSettings
from spark_sink.lake.tail import DETACHED_BYTES
from spark_sink.run_arguments import parser, settings_of


def settings(tmp_path: Path, *options: str) -> SinkSettings:
    addresses = ["--landing", str(tmp_path / "landing"), "--lake", str(tmp_path / "lake")]
    return settings_of(parser().parse_args(["run", *addresses, *options]))


def test_merges_beside_batches_when_nobody_asks_for_them_then_there_are_none(tmp_path: Path) -> None:
    found = settings(tmp_path)
    assert found.detached_bytes is None and found.table_waiting.detached_bytes is None


@pytest.mark.parametrize("more", [(), ("--available-now",)])
def test_merges_beside_batches_when_they_are_asked_for_then_nothing_else_is_otherwise_and_large_tables_have_them(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    found = settings(tmp_path, "--merge-beside-batches", *more)
    assert found == replace(settings(tmp_path, *more), detached_bytes=DETACHED_BYTES)
    assert found.table_waiting.detached_bytes == (None if more else DETACHED_BYTES), "an end waits for all merges"
