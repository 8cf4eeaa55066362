"""`python -m tests.bench.search [--rows N]`: what an index of a table costs, beside SQLite's FTS5 in the same run.

The table has N rows with a title, a body of 20 words, a city and a price. `menura search index` builds the index, then
brings it over 10,000 updates; CPU seconds and the most memory of its process, and the folder's size. FTS5 has the same
texts, read from the same Arrow rows, by its own external key. Into build/bench-search.json.
"""

import argparse
import os
import random
import re
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pyarrow as pa

from spark_sink.lake.records import Records
from spark_sink.reading import open_rows
from spark_sink.search.asking import Search
from spark_sink.search.searching import open_search
from spark_sink.work import CutSeen, Outcome, Result
from tests.bench.report import console, write_figures
from tests.bench.views import Held, Source
from tests.servers import ROOT

CHANGES, SEARCHES = 10_000, 50
WORDS = [f"word{number}" for number in range(50_000)]
COLUMNS = pa.schema(
    [("id", pa.int64()), ("title", pa.string()), ("body", pa.string()), ("city", pa.string()), ("price", pa.int64())]
)


@dataclass(frozen=True, slots=True)
class Figure:
    """CPU seconds; of the folder MiB."""

    case: str
    ours: float
    peer: float | None
    ratio: float | None
    goal: str
    met: bool


def make(choose: random.Random, keys: list[int]) -> dict[str, list[object]]:
    return {
        "id": list(keys),
        "title": [" ".join(choose.choices(WORDS, k=4)) for _ in keys],
        "body": [" ".join(choose.choices(WORDS, k=20)) for _ in keys],
        "city": [f"city {choose.randrange(1000)}" for _ in keys],
        "price": [choose.randrange(100_000) for _ in keys],
    }


def record(table: Source, cut: int) -> None:
    """The table's versions are a boundary of its source."""
    at = table.at()
    done = Outcome(
        table.table,
        Result.APPLIED,
        cut,
        cut,
        changelog_version=at.changelog_version,
        current_version=at.current_version,
    )
    Records(table.lake).record_batch([CutSeen("acme", "shop", 1, cut, cut, 0, 0, 0)], [done], whole=True)


def command(*words: str) -> tuple[float, float]:
    """CPU seconds of `menura search`, and the most MiB of its own memory: mapped files are not in it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    running = subprocess.Popen([str(Path(sys.executable).with_name("menura")), "search", *words], cwd=ROOT)
    most_kib = 0
    while running.poll() is None:
        with suppress(OSError):
            found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{running.pid}/status").read_text())
            most_kib = max(most_kib, int(found[1]) if found is not None else 0)
        time.sleep(0.05)
    if running.returncode:
        raise SystemExit(f"bench-search: menura search {words[0]} ended with {running.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, most_kib / 1024


def measured(task: Callable[[], object]) -> float:
    began = time.process_time()
    task()
    return time.process_time() - began


def rows_of(table: Source) -> list[tuple[object, ...]]:
    found = pa.concat_tables(list(open_rows(table.lake, table.table).tables(["id", "title", "body", "city"])))
    return [tuple(row.values()) for row in found.to_pylist()]


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-search", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    chosen = parser.parse_args()
    choose = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="menura-bench-search-", dir=os.environ.get("MENURA_BENCH_FOLDER")) as place:
        table, indexes = Source(f"{place}/lake", "articles", COLUMNS, make, chosen.rows), Path(place) / "indexes"
        table.load(choose)
        record(table, 1)
        name = table.table.default_folder
        index = ("index", name, "--lake", table.lake, "--folder", str(indexes))
        built, build_mib = command(*index)
        size = sum(file.stat().st_size for file in indexes.rglob("*") if file.is_file()) / (1 << 20)
        peer = sqlite3.connect(f"{place}/fts5")
        peer.execute("CREATE VIRTUAL TABLE t USING fts5(title, body, city)")
        put = "INSERT OR REPLACE INTO t(rowid, title, body, city) VALUES (?, ?, ?, ?)"

        def build() -> None:
            peer.executemany(put, rows_of(table))
            peer.commit()

        peer_built = measured(build)
        peer_size = (Path(place) / "fts5").stat().st_size / (1 << 20)
        held = Held(table)
        table.change(choose, CHANGES, held)
        record(table, 2)
        changed, change_mib = command(*index)
        rows = [tuple(row[name] for name in ("id", "title", "body", "city")) for row in held.values()]

        def change() -> None:
            peer.executemany(put, rows)
            peer.commit()

        peer_changed = measured(change)
        checked, check_mib = command("check", name, "--folder", str(indexes))
        opened = open_search(indexes, table.table)
        words = choose.sample(WORDS, SEARCHES)
        ours = [measured(lambda w=w: opened.ask(Search(w, facets=["city"]))) for w in words]  # type: ignore[misc]
        text = "SELECT rowid, * FROM t WHERE t MATCH ? ORDER BY rank LIMIT 10"
        theirs = [measured(lambda w=w: peer.execute(text, (w,)).fetchall()) for w in words]  # type: ignore[misc]
    figures = [
        Figure("build", built, peer_built, built / peer_built, "", True),
        Figure(f"{CHANGES} updates", changed, peer_changed, changed / peer_changed, "", True),
        Figure("check", checked, None, None, "", True),
        Figure("search with a facet", median(ours), median(theirs), median(ours) / median(theirs), "", True),
        Figure("folder, MiB", size, peer_size, size / peer_size, "", True),
    ]
    write_figures("bench-search.json", figures, console())
    for each in figures:
        sys.stdout.write(f"{each.case}: {each.ours:.3f}, FTS5 {each.peer or 0:.3f}\n")
    memory = f"{build_mib:.0f} MiB to build, {change_mib:.0f} to change, {check_mib:.0f} to check"
    sys.stdout.write(f"of {chosen.rows} rows; most memory {memory}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
