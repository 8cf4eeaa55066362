"""What a query on a schedule gives is bounded before anybody takes memory for it, and so is what is written for it."""

import array
import fcntl
import io
import shutil
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

import pyarrow as pa
import pytest

from spark_sink.errors import ViewNotComputed
from spark_sink.views import query_process
from spark_sink.views.child_process import started
from spark_sink.views.engine import engine
from spark_sink.views.query_process import Bounds, computed
from tests.stack import wait_for

MIB = 1 << 20


def numbers(rows: int) -> pa.RecordBatchReader:
    return pa.table({"a": pa.array(range(rows), pa.int64())}).to_reader(max_chunksize=1000)


@pytest.mark.parametrize(
    ("sql", "bounds", "reason"),
    [
        ("SELECT t0.a, repeat('x', 2000000) AS x FROM t0 WHERE t0.a = 7", Bounds(row_bytes=MIB), "one of its rows has"),
        (
            "SELECT t0.a, repeat('x', 100000) AS x FROM t0",
            Bounds(result_bytes=8 * MIB),
            "its rows have more than 8 MiB",
        ),
        ("SELECT t0.a FROM t0", Bounds(rows=999), "more than 999 rows"),
        ("SELECT a.a FROM t0 a, t0 b, t0 c, t0 d", Bounds(rows=1000, scratch_bytes=MIB), "more than 1,000 rows"),
    ],
)
def test_a_query_when_it_gives_too_much_then_the_process_says_so_and_none_of_it_is_sent(
    sql: str, bounds: Bounds, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_process, "_Bounded", None)  # nobody reads rows
    with pytest.raises(ViewNotComputed, match=reason), computed(sql, {"t0": numbers(1000)}, bounds):
        pass


def test_rows_when_they_are_large_then_they_come_in_messages_of_a_bounded_size() -> None:
    sql = "SELECT t0.a, repeat('x', 100000) AS x FROM t0"
    with computed(sql, {"t0": numbers(1000)}) as rows:
        sizes = [(batch.num_rows, batch.nbytes) for batch in rows]
    assert sum(count for count, _ in sizes) == 1000
    assert max(size for _, size in sizes) <= 16 * MIB


class Answer(io.BytesIO):
    """Of a process that does not keep to its bounds; knows how much is read at once."""

    most = 0

    def read(self, size: int | None = -1, /) -> bytes:
        assert size is not None
        self.most = max(self.most, size)
        return super().read(size)


@pytest.mark.parametrize(
    ("rows", "bounds", "reason"),
    [
        (pa.table({"x": ["x" * 3 * MIB]}), Bounds(row_bytes=MIB), "one of its rows has more than 1 MiB"),
        (
            pa.table({"x": ["x" * MIB] * 4}),
            Bounds(row_bytes=8 * MIB, result_bytes=MIB),
            "its rows have more than 1 MiB",
        ),
    ],
)
def test_a_process_when_it_sends_more_than_it_may_then_no_memory_is_taken_for_it(
    rows: pa.Table, bounds: Bounds, reason: str
) -> None:
    sent = io.BytesIO()
    sent.write(b'{"rows": %d}\n' % rows.num_rows)
    with pa.ipc.new_stream(sent, rows.schema) as writer:
        writer.write_table(rows)
    answer = Answer(sent.getvalue())
    with pytest.raises(ViewNotComputed, match=reason):
        query_process._rows(answer, bounds).read_all()
    assert answer.most < 2 * MIB


@pytest.mark.parametrize("said", [b'{"rows": 1001}\n', b'{"rows": -1}\n', b'{"rows": "1"}\n', b"{}\n"])
def test_a_process_when_it_says_an_impossible_number_of_rows_then_it_is_not_believed(said: bytes) -> None:
    with pytest.raises(query_process._Gone):
        query_process._rows(io.BytesIO(said), Bounds(rows=1000))


def test_a_process_when_it_gives_more_rows_than_it_said_then_it_is_not_believed() -> None:
    rows = pa.table({"a": [1, 2, 3]})
    sent = io.BytesIO(b'{"rows": 2}\n')
    sent.seek(0, io.SEEK_END)
    with pa.ipc.new_stream(sent, rows.schema) as writer:
        writer.write_table(rows)
    with pytest.raises(query_process._Gone):
        query_process._rows(io.BytesIO(sent.getvalue()), Bounds()).read_all()


def test_an_engine_when_its_folder_is_full_then_it_says_so_and_the_folder_stays_within_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with engine(memory_bytes=32 * MIB, scratch_bytes=16 * MIB) as sql:
        with pytest.raises(ViewNotComputed, match="32 MiB of memory at once, or than 16 MiB on disk"):
            sql.keep("wide", "SELECT i, md5(i::VARCHAR) || md5((i + 1)::VARCHAR) AS x FROM range(3000000) r(i)")
        held = sum(each.stat().st_size for each in tmp_path.rglob("*") if each.is_file())
    assert held <= 16 * MIB
    assert list(tmp_path.iterdir()) == []


def unread(pipe: int) -> int:
    found = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, found)
    return found[0]


def test_a_query_when_its_folder_was_removed_and_its_input_ends_then_its_process_ends(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with subprocess.Popen(
        [sys.executable, "-I", "-c", query_process._source()],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=scratch, env=query_process._ENVIRONMENT,
    ) as process:  # fmt: skip
        try:
            assert process.stdin is not None
            # more than a pipe and a reader hold: once it is read the process has its engine
            sql = "SELECT count(*) AS n FROM t0 a, t0 b, t0 c"
            query_process._send(process.stdin, sql, {"t0": numbers(200_000)}, Bounds())
            given = process.stdin.fileno()
            wait_for("its table to be read", lambda: unread(given) == 0)
            shutil.rmtree(scratch)
            process.stdin.close()
            wait_for("its end", lambda: process.poll() is not None, seconds=20)
        finally:
            process.kill()
    assert process.returncode == 1


def test_a_query_when_it_takes_more_of_a_core_than_it_may_then_it_is_said_to_take_longer(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-c", query_process._source()]
    with started(command, str(tmp_path), query_process._ENVIRONMENT, seconds=3600) as child:
        sql = "SELECT count(*) AS n FROM t0 a, t0 b, t0 c, t0 d"
        query_process._send(child.given, sql, {"t0": numbers(1000)}, Bounds(seconds=3))
        assert child.gives.read() == b""
        assert child.ended() == "it takes longer than 3600 s"


def test_a_process_when_its_time_is_over_then_that_is_said_once_its_answer_has_ended(tmp_path: Path) -> None:
    with started(["sleep", "3600"], str(tmp_path), {}, seconds=0.1) as child:
        assert child.gives.read() == b""
        assert child.ended() == "it takes longer than 0.1 s"
