"""`python -m tests.bench.export [--changes N]`: CPU of a change's way out of the lake, in JSON and in Avro.

N updates of a table of 10 columns, both images in the message. Encoding alone is beside fastavro's for the same schema
and values; whole exports into a folder are beside those in JSON. Microseconds of CPU a change, median of three runs
after another, into build/bench-export.json.
"""

import argparse
import io
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import fastavro
import pyarrow as pa

from spark_sink.export.avro import Codec
from spark_sink.export.avro_files import AvroEntries
from spark_sink.export.envelope import JsonLines
from spark_sink.export.feed import Feed, Step
from spark_sink.export.fields import FieldOf, avro_field_of, field_of
from spark_sink.export.outputs import FolderOutput, Form
from tests.bench.report import console, write_figures
from tests.bench.search import record
from tests.bench.views import Held, Source

COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        *((f"text{number}", pa.string()) for number in range(3)),
        *((f"number{number}", pa.int64()) for number in range(3)),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us")),
        ("real", pa.float64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Figure:
    """Microseconds of CPU a change."""

    case: str
    ours: float
    peer: float
    ratio: float
    goal: str
    met: bool


def make(choose: random.Random, keys: list[int]) -> dict[str, list[object]]:
    numbers = [choose.randrange(1_000_000_000) for _ in keys]
    return {
        "id": list(keys),
        **{f"text{number}": [f"a text of row {key}, {key * 7}" for key in keys] for number in range(3)},
        **{f"number{number}": list(numbers) for number in range(3)},
        "price": [pa.scalar(number % 1_000_000, pa.int64()).cast(pa.decimal128(19, 0)).as_py() for number in numbers],
        "at": [pa.scalar(1_700_000_000_000_000 + number, pa.timestamp("us")).as_py() for number in numbers],
        "real": [number / 7 for number in numbers],
    }


def step_of(table: Source, fields: FieldOf) -> Step:
    """The updates."""
    feed = Feed(table.lake, [table.table], fields=fields)
    feed.position = feed.at_cut(1, whole=False)
    step = feed.next()
    assert step is not None
    return step


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-export", description=__doc__)
    parser.add_argument("--changes", type=int, default=50_000)
    changes = parser.parse_args().changes

    def cost(task: Callable[[], object]) -> float:
        found = []
        for _ in range(3):
            began = time.process_time()
            task()
            found.append((time.process_time() - began) / changes * 1e6)
        return median(found)

    choose = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="menura-bench-export-", dir=os.environ.get("MENURA_BENCH_FOLDER")) as name:
        place = Path(name)
        table = Source(f"{place}/lake", "orders", COLUMNS, make, changes)
        table.load(choose)
        record(table, 1)
        table.change(choose, changes, Held(table))
        record(table, 2)
        in_json, in_avro = step_of(table, field_of), step_of(table, avro_field_of)
        read = cost(lambda: sum(1 for _ in in_avro.messages()))
        folders = iter(range(100))
        lines = cost(lambda: FolderOutput(place / f"out{next(folders)}", Form()).write(in_json))
        files = cost(lambda: FolderOutput(place / f"out{next(folders)}", Form(), AvroEntries).write(in_avro))
        (of, _), *_ = in_avro.messages()
        lines_of, codec = JsonLines(of.envelope), Codec.of(table.table, of.envelope.value_schema())
        values = [message.value for _, message in in_avro.messages() if message.value is not None]
        texts = [message for _, message in in_json.messages()]
        json_text = cost(lambda: [lines_of.value(message) for message in texts])
        encoded = cost(lambda: [codec.encode(table.table, 1, value) for value in values])
        schema = fastavro.parse_schema(json.loads(codec.schema))
        peer = cost(lambda: [fastavro.schemaless_writer(io.BytesIO(), schema, value) for value in values])
    is_near = files <= 1.2 * lines
    figures = [
        Figure("Avro's encoding, beside fastavro's", encoded, peer, encoded / peer, "at most 1", encoded <= peer),
        Figure("Avro's encoding, beside JSON's", encoded, json_text, encoded / json_text, "", True),
        Figure("an export to files in Avro, beside JSON", files, lines, files / lines, "at most 1.2", is_near),
    ]
    write_figures("bench-export.json", figures, console())
    for each in figures:
        sys.stdout.write(f"{each.case}: {each.ours:.1f} and {each.peer:.1f} µs a change, ratio {each.ratio:.2f}\n")
    sys.stdout.write(f"of these {read:.1f} µs are reading the lake\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
