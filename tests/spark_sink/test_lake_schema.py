"""Types that a lake column can and can't take, and the memory that a merge takes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from spark_sink.landed.lake_schema import grown, lake_type, wider
from tests.servers import ROOT
from tests.spark_sink.landing import Table, Writer

LONG, TEXT = pa.int64(), pa.string()


@pytest.mark.parametrize(
    ("lake", "landed", "expected"),
    [
        (LONG, LONG, LONG),
        (LONG, pa.decimal128(20, 0), pa.decimal128(20, 0)),
        (pa.decimal128(20, 0), LONG, pa.decimal128(20, 0)),
        (pa.decimal128(10, 2), pa.decimal128(12, 4), pa.decimal128(12, 4)),
        (pa.decimal128(38, 0), pa.decimal128(38, 10), TEXT),
        (LONG, TEXT, TEXT),
        (TEXT, pa.decimal128(20, 0), TEXT),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.float64(), pa.float32(), pa.float64()),
        (LONG, pa.float64(), None),
        (TEXT, pa.float64(), None),
        (pa.date32(), pa.timestamp("us"), None),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), None),
        (pa.binary(), TEXT, None),
        (pa.bool_(), pa.bool_(), pa.bool_()),
        (pa.bool_(), LONG, None),
        (LONG, pa.bool_(), None),
        (pa.decimal128(1, 0), pa.bool_(), None),
        (pa.bool_(), TEXT, None),
        (TEXT, pa.bool_(), None),
    ],
)
def test_a_pair_of_types_when_joined_then_the_wider_holds_both_or_there_is_none(
    lake: pa.DataType, landed: pa.DataType, expected: pa.DataType | None
) -> None:
    assert wider(lake, landed) == expected


def test_columns_that_differ_in_case_alone_when_joined_then_they_are_one() -> None:
    schema, refused = grown(pa.schema([("Name", TEXT)]), pa.schema([("name", TEXT), ("new", LONG)]))
    assert (schema.names, refused) == (["Name", "new"], None)


def test_a_type_that_no_column_lands_with_when_asked_for_then_there_is_none() -> None:
    assert lake_type(pa.list_(LONG)) is None


CANARY = """
import resource, json, sys
from pathlib import Path
from tests.spark_sink.landing import apply_entries
(outcome,) = apply_entries(Path(sys.argv[1]), Path(sys.argv[2]), first=int(sys.argv[3]))
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"code": outcome.code, "peak_mib": int(peak.split()[1]) >> 10}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads its peak memory from /proc")
def test_a_merge_of_evenly_spread_keys_when_done_then_a_worker_stays_within_its_memory(tmp_path: Path) -> None:
    table = Table("t", {"id": pa.int64(), "a": TEXT, "b": TEXT})
    writer = Writer(tmp_path / "landing")
    peaks = []
    for entry, step in ((1, 1), (2, 2)):
        rows = ([("insert", {"id": n, "a": f"some text {n}", "b": f"more text {n}"})] for n in range(0, 200_000, step))
        writer.cut((table, rows))
        ran = subprocess.run(
            [sys.executable, "-c", CANARY, str(writer.folder), str(tmp_path / "lake"), str(entry)],
            capture_output=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=True,
        )
        answer = json.loads(ran.stdout)
        assert answer["code"] == ""
        peaks.append(answer["peak_mib"])
    # Measured with deltalake 1.6.6: 317 MiB.
    assert peaks[1] < 500, peaks
