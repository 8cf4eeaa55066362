"""`python -m tests.bench.verify [--rows N]`: what it costs to verify a table of eleven columns that is equal.

Of the agent: CPU seconds of its reader with digests, beside the same reader to Arrow columns alone, which are dropped;
a client that reads the rows and drops them, and the server's own CHECKSUM TABLE, are shown with them. Of the sink: CPU
nanoseconds a row of the comparison of chunks of a million rows, in one process. Into build/bench-verify.json.
"""

import argparse
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from menura.change_batch import ABSENT, GSN, UNREPRESENTABLE
from menura.landed_digest import LandedDigest, LandedLeaf
from menura.landing import LandedChunk
from menura.row_hash import HashedRows
from rich.table import Table as Printed

from agent.snapshot.digest import LEAF_ROWS
from spark_sink.lake.delta_table import WRITER
from spark_sink.lake.digests import Verdict, compare
from spark_sink.work import TableId
from tests.bench.readers import Measure, measured, menura_dump, menura_select
from tests.bench.report import console, median, write_figures
from tests.bench.workload import Case, make, prepare
from tests.servers import Server, server

SETTINGS = {"innodb_flush_log_at_trx_commit": "0", "innodb_buffer_pool_size": "1G"}
CHUNK_ROWS = 1_000_000
AGENT_GOAL, SINK_GOAL_NS = 1.3, 600


@dataclass(frozen=True, slots=True)
class Figure:
    """CPU seconds, or nanoseconds a row; what has no goal is shown for comparison."""

    case: str
    ours: float
    peer: float | None
    ratio: float | None
    goal: str
    met: bool


def menura_digest(of: Server, case: Case) -> Measure:
    """The reader, and of each batch the hashes of its rows."""
    command = [sys.executable, "-m", "tests.bench.dump", "--digest", of.host, str(of.port), case.table, str(case.rows)]
    return measured("menura-digest", case, command)


def to_nowhere(of: Server, case: Case) -> Measure:
    """MariaDB's client, which prints the rows to nobody."""
    client = shutil.which("mariadb") or "mariadb"
    login = [f"--host={of.host}", f"--port={of.port}", "--user=menura", "--password=menura-secret", "--skip-ssl"]
    query = f"SELECT * FROM bench.{case.table}"
    return measured("SELECT to nowhere", case, [client, *login, "--quick", "--batch", "-e", query])


def of_agent(of: Server, rows: int) -> list[Figure]:
    prepare(of)
    case = make(of, "dump", rows)
    to_arrow, digested = (median(partial(read, of, case)).cpu_s for read in (menura_select, menura_digest))
    ratio = digested / to_arrow
    figures = [Figure("agent: digest", digested, to_arrow, ratio, f"at most {AGENT_GOAL}", ratio <= AGENT_GOAL)]
    others = {"agent: as it travels in a dump": menura_dump}
    if shutil.which("mariadb"):
        others["client: SELECT to nowhere"] = to_nowhere
    for name, read in others.items():
        cpu_s = median(partial(read, of, case)).cpu_s
        figures.append(Figure(name, cpu_s, to_arrow, cpu_s / to_arrow, "none", met=True))
    began = time.monotonic()
    of.run(f"CHECKSUM TABLE bench.{case.table}")
    seconds = time.monotonic() - began
    return [*figures, Figure("server: CHECKSUM TABLE (wall)", seconds, None, None, "none", met=True)]


def of_sink(folder: Path, rows: int) -> Figure:
    table = str(folder / "current")
    seconds, compared = 0.0, 0
    for first in range(0, rows, CHUNK_ROWS):
        batch = lake_rows(first, min(rows, first + CHUNK_ROWS))
        hashed = HashedRows(batch)
        leaves = []
        for at in range(0, batch.num_rows, LEAF_ROWS):
            end = min(batch.num_rows, at + LEAF_ROWS)
            upper = (first + end - 1,) if end < batch.num_rows else ()
            leaves.append(LandedLeaf(upper, *hashed.sums(at, end)))
        digest = LandedDigest(hashed.columns, ("id",), tuple(leaves))
        lower = f'["{first - 1}","#"]' if first else ""
        upper_bound = f'["{first + batch.num_rows - 1}","#"]'
        facts = (1, 1, 0, lower, upper_bound, False, batch.num_rows, 0, 0, 0, "", digest)
        chunk = LandedChunk("bench", "rows", "verification", *facts)
        held = pa.table(batch).append_column(ABSENT, pa.nulls(batch.num_rows, pa.string()))
        held = held.append_column(GSN, pa.repeat(pa.scalar(1), batch.num_rows))
        write_deltalake(table, held, mode="append", writer_properties=WRITER)
        delta = DeltaTable(table)
        began = time.process_time()
        finding = compare(TableId("acme", "bench", "bench", "rows"), chunk, 2, delta, None)
        seconds += time.process_time() - began
        compared += finding.lake_rows
        assert finding.verdict is Verdict.EQUAL, finding
    assert compared == rows
    ns = seconds / rows * 1e9
    return Figure("sink: ns a row", ns, None, ns / SINK_GOAL_NS, f"at most {SINK_GOAL_NS} ns", ns <= SINK_GOAL_NS)


def lake_rows(first: int, last: int) -> pa.RecordBatch:
    """Like those of the table in the database, in the lake's types."""
    keys = range(first, last)
    numbers = pa.array(keys, pa.int64())
    return pa.record_batch(
        {
            "id": numbers,
            "customer": pa.array((n * 7 % 100_003 for n in keys), pa.int64()),
            "quantity": pa.array((n % 300 for n in keys), pa.int64()),
            "flags": pa.array((n % 7 for n in keys), pa.int64()),
            "price": pa.array((n % 99_991 for n in keys), pa.int64()).cast(pa.decimal128(19, 0)),
            "weight": pa.array((n / 3 for n in keys), pa.float64()),
            "sku": pa.array(f"SKU-{n % 50_000:08}" for n in keys),
            "title": pa.array(f"Article number {n} of the catalogue, grün" for n in keys),
            "placed": numbers.cast(pa.timestamp("us")),
            "changed": numbers.cast(pa.timestamp("us", "UTC")),
            "code": pa.array(f"{n % 65_536:C>8X}" for n in keys),
            UNREPRESENTABLE: pa.nulls(last - first, pa.string()),
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.verify", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    rows = parser.parse_args().rows
    out = console()
    with tempfile.TemporaryDirectory(prefix="menura-bench-") as name:
        folder = Path(name)
        figures = [of_sink(folder / "lake", rows)]
        with server("mysql", folder / "mysql", **SETTINGS) as mysql:
            mysql.create_replication_user()
            figures += of_agent(mysql, rows)
    printed = Printed(title=f"Verifying {rows:,} rows of eleven columns")
    for heading in ("case", "ours", "to Arrow alone", "ratio", "goal", "met"):
        printed.add_column(heading)
    for each in figures:
        peer, ratio = ("-" if value is None else f"{value:.2f}" for value in (each.peer, each.ratio))
        printed.add_row(each.case, f"{each.ours:.2f}", peer, ratio, each.goal, "yes" if each.met else "no")
    out.print(printed)
    write_figures("bench-verify.json", figures, out)


if __name__ == "__main__":
    main()
