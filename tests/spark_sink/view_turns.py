"""A process that does views' turns: `python -m tests.spark_sink.view_turns FOLDER SEED`, a turn for each line it reads.

Comes in: the folder of a `World` whose tables are at a cut. Goes out: a line before the first turn, and one behind each
turn, with how the views stand. Whoever started it may kill it at any moment.
"""

import json
import sys
from pathlib import Path

from spark_sink.lake.tail import Waiting
from spark_sink.views.division import ALONE, Dividing
from spark_sink.views.scratch import remove_left
from tests.spark_sink.view_model import Text, sink_of, texts

#: of the groups and joins that are generated
VIEWS = 3


def waiting_of(seed: int) -> Waiting:
    return Waiting(3600, -1, part_of_table=1e9) if seed % 2 else Waiting(0)


def views_of(seed: int) -> dict[str, Text]:
    """Of these one reads another."""
    return {
        "joined": lambda named: (
            f"SELECT o.id, o.qty, p.name FROM {named('orders')} o LEFT JOIN {named('people')} p ON p.id = o.person"
        ),
        "by_name": lambda named: (
            "SELECT v.name, count(*) AS n, sum(v.qty) AS qty, max(v.id) AS last"
            f" FROM {named('joined')} v GROUP BY v.name"
        ),
        **texts(seed, VIEWS),
    }


def main() -> int:
    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    dividing = ALONE if seed % 3 else Dividing(3, least_rows=0, least_gain=0)
    remove_left()  # as a sink does that begins
    sink = sink_of(folder, waiting_of(seed), views_of(seed), stores=seed % 4 < 2, dividing=dividing)
    print("begun", flush=True)
    for _ in sys.stdin:
        sink.turn()
        print(json.dumps([[each.name, each.state, each.message] for each in sink.states()]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
