"""A merge beside batches whose process, or whose worker, is killed: each row is there once, at each cut."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_sink.lake.delta_table import open_table, scan
from tests.spark_sink.detached_merges import LARGE, Source, check_readers, folder, merged, prepared_files
from tests.spark_sink.landing import Writer
from tests.spark_sink.test_divided_views_spark import kill, start
from tests.stack import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.long]


def until(what: str, is_so: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    def holds() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        return is_so()

    wait_for(what, holds, 600)


def is_applied(lake: Path, cut: int) -> bool:
    cuts = open_table(f"{lake}/_menura/cuts")
    return cuts is not None and scan(cuts, "SELECT max(cut) AS cut FROM t").read_all()["cut"][0].as_py() == cut


def recorded_version(lake: Path) -> int:
    """Of the current state, at the table's last boundary."""
    cuts = open_table(f"{lake}/_menura/cuts")
    assert cuts is not None
    query = "SELECT current_version AS version FROM t WHERE \"table\" = 'large' ORDER BY cut DESC, number DESC LIMIT 1"
    return int(scan(cuts, query).read_all()["version"][0].as_py())


@pytest.mark.parametrize("stage", ["writing", "prepared", "committed"])
def test_sink_when_it_is_killed_in_a_merge_beside_batches_then_each_row_is_there_once_at_each_cut(
    writer: Writer, lake: Path, tmp_path: Path, stage: str
) -> None:
    source, mark, log = Source(writer), tmp_path / "held", tmp_path / "sink.log"
    addresses = ("--landing", str(writer.folder), "--lake", str(lake), "--checkpoint", str(lake / "_menura/checkpoint"))
    command = [sys.executable, "-m", "tests.spark_sink.detached_sink", *addresses]
    source.begin()
    process = start([*command, "--hold", stage, str(mark)], log)
    try:
        until("the first batch", lambda: is_applied(lake, 1), process, log)
        source.cut((LARGE, source.change(1, 2, 3, 4, 5)))
        until("the merge to be held", mark.exists, process, log)
        source.cut()
        if stage != "committed":  # batches wait for a commit
            until("a batch meanwhile", lambda: is_applied(lake, 3), process, log)
    finally:
        kill(process)
    assert prepared_files(lake)
    assert (merged(lake) == source.rows) is (stage == "committed")
    process = start(command, log)
    try:
        until("the batch", lambda: is_applied(lake, 3), process, log)
        until("the merge", lambda: merged(lake) == source.rows, process, log)
        version = DeltaTable(folder(lake, "current")).version()
        until("its record", lambda: recorded_version(lake) == version, process, log)
        source.cut((LARGE, source.change(2)))
        until("a later batch", lambda: is_applied(lake, 4), process, log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, log.read_text()[-3000:]
    finally:
        kill(process)
    check_readers(lake, source)
    named = set(pa.table(DeltaTable(folder(lake, "current")).get_add_actions())["path"].to_pylist())
    assert prepared_files(lake) <= named
