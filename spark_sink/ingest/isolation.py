"""A batch whose Python worker was killed: done again in parts, until the table that kills its worker is found.

Comes in: a batch's rows by partition, and what runs rows as a Spark job. Goes out: the messages of all tables, those of
the culprit being its stop. Spark ends a job with its first lost worker, as for lack of memory, and a batch that is done
again meets the same table: so all tables would wait for one. What a table has it skips, so doing its part again
costs little. Parts are halved; within a family, whose tables stand in order, one table after the other joins.

A worker may be killed for another reason: a table stops only when it was `ATTEMPTS` times alone at work, or behind
others of its family that were done, and only while a job that does nothing goes through (`is_well`).
"""

import time
from collections.abc import Callable, Sequence

from pyspark.sql import Row

from spark_sink.errors import WorkerKilled
from spark_sink.ingest.families import Families
from spark_sink.ingest.table_task import stopped
from spark_sink.work import Message, Outcome, TableId, row_table, split_rows

ATTEMPTS = 3
PAUSE_SECONDS = 1.0

#: rows of one partition, and tables to leave alone beside those that have stopped before
RunRows = Callable[[Sequence[Row], frozenset[TableId]], list[Message]]


class JobLost(Exception):
    """A job ended without the outcomes of its tables."""


def isolated(
    parts: Sequence[Sequence[Row]], run: RunRows, is_well: Callable[[], bool], families: Families
) -> list[Message]:
    """All messages of the parts. Raises `JobLost` where not one table is to blame."""
    return [message for part in parts for message in _whole_or_halves(part, run, is_well, families)]


def _whole_or_halves(
    rows: Sequence[Row], run: RunRows, is_well: Callable[[], bool], families: Families
) -> list[Message]:
    try:
        return run(rows, frozenset())
    except JobLost:
        if not is_well():
            raise
    members = _by_family(rows, families)
    if len(members) <= 1:
        return _one_by_one(rows, run, is_well)
    middle = len(members) // 2
    halves = [[row for member in half for row in member] for half in (members[:middle], members[middle:])]
    halves[0] = [*(row for row in rows if row["table"] is None), *halves[0]]
    return [message for half in halves for message in _whole_or_halves(half, run, is_well, families)]


def _by_family(rows: Sequence[Row], families: Families) -> list[list[Row]]:
    """Rows of cuts, and of problems, stand in none."""
    found: dict[TableId, list[Row]] = {}
    for row in rows:
        if row["table"] is not None:
            found.setdefault(families.family(_table(row)), []).append(row)
    return list(found.values())


def _one_by_one(rows: Sequence[Row], run: RunRows, is_well: Callable[[], bool]) -> list[Message]:
    """The tables of one family: each joins those before it."""
    stops: dict[TableId, Outcome] = {}
    events: list[Message] = []
    taken: list[Row] = [row for row in rows if row["table"] is None]
    tables = list(dict.fromkeys(_table(row) for row in rows if row["table"] is not None))
    done = run(taken, frozenset()) if taken else []
    for table in tables:
        own = [row for row in rows if row["table"] is not None and _table(row) == table]
        try:
            done = _attempts([*taken, *own], run, is_well, frozenset(stops))
        except JobLost:
            known, work = split_rows(row.asDict() for row in own)
            if table in work:  # else it is an event of a verification, which has nothing to do in a task
                stops[table] = stopped(table, work[table][0], worker_killed(table, work[table][0].cut))
            events += known
            continue
        taken += own
    return [*done, *events, *stops.values()]


def _attempts(
    rows: Sequence[Row], run: RunRows, is_well: Callable[[], bool], left_alone: frozenset[TableId]
) -> list[Message]:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return run(rows, left_alone)
        except JobLost:
            if attempt == ATTEMPTS or not is_well():
                raise
        time.sleep(PAUSE_SECONDS * attempt)
    raise AssertionError("unreachable")


def _table(row: Row) -> TableId:
    return row_table(row.asDict())


def worker_killed(table: TableId, cut: int) -> WorkerKilled:
    return WorkerKilled(
        "writing the table in the lake",
        f"the process that did it ended {ATTEMPTS} times, as where it is killed for lack of memory",
        data="The table stays at its last version, or between two; other tables go on",
        remedy=f"Give the sink's machine more memory, or fewer cores (--master), then run: {table.retry}",
        **table.where(cut),
    )
