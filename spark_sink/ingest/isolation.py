"""A batch whose Python worker was killed: done again in parts, until the table that kills its worker is found.

Comes in: a batch's rows by partition, and what runs rows as a Spark job. Goes out: the messages of all tables, those of
the culprit being its stop. Spark ends a job with its first lost worker, as for lack of memory, and a batch that is done
again meets the same table: so all tables would wait for one. What a table has it skips, so doing its part again
costs little. Where it is known which tables the processes were at (`at_work`), all others are done first, in one job.
Parts that are lost are halved; within a family, whose tables stand in order, one table after the other joins.

A worker may be killed for another reason: a table stops for good only when it was `ATTEMPTS` times alone at work, or
behind others of its family that were done, and only while a job that does nothing goes through (`is_well`). All tables
wait for a batch, so a batch tries once; its table is tried again beside the batches.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

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
    parts: Sequence[Sequence[Row]],
    run: RunRows,
    is_well: Callable[[], bool],
    families: Families,
    attempts: int = ATTEMPTS,
    suspects: Collection[TableId] = (),
) -> list[Message]:
    """All messages of the parts. Raises `JobLost` where not one table is to blame."""
    apart = _others_first(parts, families, suspects) if suspects else parts
    return [message for part in apart for message in _whole_or_halves(part, run, is_well, families, attempts)]


def _others_first(
    parts: Sequence[Sequence[Row]], families: Families, suspects: Collection[TableId]
) -> list[Sequence[Row]]:
    """The same rows: those of families without a suspect, then each family with one."""
    of_suspects = set(map(families.family, suspects))
    others: list[Row] = []
    apart: dict[TableId, list[Row]] = {}
    for row in (row for part in parts for row in part):
        family = families.family(_table(row)) if row["table"] is not None else None
        if family in of_suspects:
            apart.setdefault(family, []).append(row)
        else:
            others.append(row)
    return [others, *apart.values()]


def _whole_or_halves(
    rows: Sequence[Row], run: RunRows, is_well: Callable[[], bool], families: Families, attempts: int
) -> list[Message]:
    try:
        return run(rows, frozenset())
    except JobLost:
        if not is_well():
            raise
    members = _by_family(rows, families)
    if len(members) <= 1:
        return _one_by_one(rows, run, is_well, attempts)
    middle = len(members) // 2
    halves = [[row for member in half for row in member] for half in (members[:middle], members[middle:])]
    halves[0] = [*(row for row in rows if row["table"] is None), *halves[0]]
    return [message for half in halves for message in _whole_or_halves(half, run, is_well, families, attempts)]


def _by_family(rows: Sequence[Row], families: Families) -> list[list[Row]]:
    """Rows of cuts, and of problems, stand in none."""
    found: dict[TableId, list[Row]] = {}
    for row in rows:
        if row["table"] is not None:
            found.setdefault(families.family(_table(row)), []).append(row)
    return list(found.values())


def _one_by_one(rows: Sequence[Row], run: RunRows, is_well: Callable[[], bool], attempts: int) -> list[Message]:
    """The tables of one family: each joins those before it."""
    stops: dict[TableId, Outcome] = {}
    events: list[Message] = []
    taken: list[Row] = [row for row in rows if row["table"] is None]
    tables = list(dict.fromkeys(_table(row) for row in rows if row["table"] is not None))
    done = run(taken, frozenset()) if taken else []
    for table in tables:
        own = [row for row in rows if row["table"] is not None and _table(row) == table]
        try:
            done = _attempts([*taken, *own], run, is_well, frozenset(stops), attempts)
        except JobLost:
            known, work = split_rows(row.asDict() for row in own)
            if table in work:  # else it is an event of a verification, which has nothing to do in a task
                killed = stopped(table, work[table][0], _killed(table, work[table][0].cut, attempts))
                stops[table] = replace(killed, terminal=attempts == ATTEMPTS)
            events += known
            continue
        taken += own
    return [*done, *events, *stops.values()]


def _attempts(
    rows: Sequence[Row], run: RunRows, is_well: Callable[[], bool], left_alone: frozenset[TableId], attempts: int
) -> list[Message]:
    for attempt in range(1, attempts + 1):
        try:
            return run(rows, left_alone)
        except JobLost:
            if attempt == attempts or not is_well():
                raise
        time.sleep(PAUSE_SECONDS * attempt)
    raise AssertionError("unreachable")


def _table(row: Row) -> TableId:
    return row_table(row.asDict())


def _killed(table: TableId, cut: int, attempts: int) -> WorkerKilled:
    mended = f"Give the sink's machine more memory, or fewer cores (--master), then run: {table.retry}"
    return WorkerKilled(
        "writing the table in the lake",
        f"the process that did it ended {attempts} time(s), as where it is killed for lack of memory",
        data="The table stays at its last version, or between two; other tables go on",
        remedy=mended if attempts == ATTEMPTS else "It is tried again at once, by itself, beside the others",
        **table.where(cut),
    )
