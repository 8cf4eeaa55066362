"""A view's turn that is divided into tasks by ranges of its driving key: which turns are, and by which ranges.

Divided is a turn that computes the whole view, its first one or a comparison, where that ends much sooner (`Dividing`):
each task reads a part of the driving table, but may have to scan all of those that are joined. One that follows changes
costs what changed, and stays one task. Comes in: the inputs, and the view at its last version. Goes out: a `Division`,
with which each range is computed (`range_task`) on any machine that reaches the lake, and the end made of what they
wrote (`division_end`). Stores are not filled meanwhile: the view's next turn makes them, on the machine that has it.

Durable is, one after the other: a commit of each of the view's tables that says that a division has begun; files in
their folders that no version names; the one commit of the changelog that names them, with the version as of any turn;
that of the current state, which puts its own files in place of all. Groups' states from each range are files too, which
the end adds up. A kill before the changelog's commit leaves the view as it was, one after it a version whose current
state the next turn completes, as of any turn. Files that it leaves have the division's number in their names, and each
table says which number it has committed last, so that the next division removes the others. Its beginning has what
somebody would still commit of an earlier one fail, in both tables, by Delta's `txn`: no file that is removed is named
later.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from menura.views.definition import InputName
from menura.views.plan import Plan

from spark_sink.lake.delta_table import commit_nothing, has_files
from spark_sink.lake.tail import Rows
from spark_sink.lake.uncommitted_files import remove_files
from spark_sink.views.inputs import OpenInput
from spark_sink.views.key_ranges import KeyRange, choose_ranges
from spark_sink.views.view_table import Reached, ViewTable
from spark_sink.work import CHANGELOG, CURRENT

#: of the driving table, that a range has at least: two CPU seconds where they are the view's; see `GROUP_COST`
LEAST_ROWS = 1_000_000
#: what a row of the driving table costs, beside a row of a joined one, which each task scans: as one of the view, which
#: is written twice, or as one of a group (`make bench-divided-views`)
ROW_COST, GROUP_COST = 12.0, 1.2
#: how many times sooner a divided turn has to end, where each task has a core
LEAST_GAIN = 1.4
#: the last division that is committed; how many have begun
_COMMITTED, _BEGUN = "view/division", "view/division/begun"


@dataclass(frozen=True, slots=True)
class Dividing:
    """Into how many tasks a turn may be divided, and from when on it is.

    >>> [Dividing(8).of(rows, 10_000_000, ROW_COST) for rows in (1_500_000, 2_500_000, 5_000_000, 20_000_000)]
    [1, 2, 5, 8]
    >>> [Dividing(8).of(20_000_000, joined, GROUP_COST) for joined in (1000, 20_000_000)]
    [2, 1]
    """

    parts: int = 1
    #: 0: of any size
    least_rows: int = LEAST_ROWS
    least_gain: float = LEAST_GAIN

    def of(self, driving_rows: int, joined_rows: int, row_cost: float) -> int:
        """Into how many tasks one over so many rows is divided."""
        cost = driving_rows * row_cost
        parts = self.parts
        if self.least_rows:
            parts = min(parts, int(cost / (self.least_rows * ROW_COST)))
        is_worth_it = parts > 1 and cost + joined_rows >= self.least_gain * (cost / parts + joined_rows)
        return parts if is_worth_it else 1


ALONE = Dividing()


@dataclass(frozen=True, slots=True)
class Division:
    #: in the names of its files
    number: int
    #: how many have begun, this one among them
    begun: int
    #: of the view's changelog and current state, over which it is computed, and with which the turn began
    versions: tuple[int, int]
    opened: tuple[int, int]
    #: the version that it makes, with the number before its changes
    after: Reached
    #: why all is computed
    whole: str
    #: the view has no row
    is_first: bool
    ranges: tuple[KeyRange, ...]
    #: the changes of one range have fewer numbers
    stride: int

    @property
    def prefix(self) -> str:
        """Of its files' names."""
        return f"divided-{self.number}-"

    @property
    def states_prefix(self) -> str:
        """Of its files with states of groups, which no commit names."""
        return f"{self.prefix}states-"

    @property
    def log_transactions(self) -> list[tuple[str, int]]:
        """What its commit of the changelog carries."""
        return [(_COMMITTED, self.number), (_BEGUN, self.begun)]

    @property
    def current_transactions(self) -> list[tuple[str, int]]:
        """What its commit of the current state carries."""
        return [(_COMMITTED, self.number), (_BEGUN, self.begun)]


def divide(
    plan: Plan,
    table: ViewTable,
    inputs: Mapping[InputName, OpenInput],
    dividing: Dividing,
    after: Reached,
    whole: str,
    opened: tuple[int, int],
) -> Division | None:
    """Begin one; None where one task does it. Raises OSError, DeltaError."""
    driving = inputs[plan.driving.name]
    joined_rows = sum(inputs[each.name].merged_rows for each in plan.inputs[1:])
    parts = dividing.of(driving.merged_rows, joined_rows, GROUP_COST if plan.is_aggregate else ROW_COST)
    if parts == 1:
        return None
    ranges = choose_ranges(driving.rows.tables(driving.key), driving.key, driving.merged_rows, parts)
    if not ranges:
        return None
    held = table.rows()
    is_first = held.effect is None and not has_files(held.current)
    number, begun = _begin(table)
    stride = 1 + _most_rows(driving.rows) + _most_rows(held)
    return Division(number, begun, table.versions, opened, after, whole, is_first, ranges, stride)


def _most_rows(rows: Rows) -> int:
    """At most so many there are, by what files say."""
    merged = pc.sum(pa.table(rows.current.get_add_actions())["num_records"]).as_py() or 0
    return int(merged) + (rows.effect.num_rows if rows.effect is not None else 0)


def _begin(table: ViewTable) -> tuple[int, int]:
    """The division's number, and how many have begun; what others of the number have left is removed."""
    log, current = table.changelog, table.current
    assert log is not None
    assert current is not None
    number, begun = ((log.transaction_version(name) or 0) + 1 for name in (_COMMITTED, _BEGUN))
    for kind, delta in ((CHANGELOG, log), (CURRENT, current)):
        commit_nothing(delta, [(_BEGUN, begun)])  # from now on the commit of one that began before fails
        remove_files(table.folder(kind), partial(_is_left, delta.transaction_version(_COMMITTED) or 0))
    return number, begun


def _is_left(committed: int, name: str) -> bool:
    """Whether no commit names a file, where the table's last one of a division is this.

    >>> [_is_left(2, f"divided-{name}.parquet") for name in ("3-07b8", "2-07b8", "2-states-07b8")]
    [True, False, True]
    """
    found = _NAME.match(name)
    return found is not None and (int(found[1]) > committed or found[2] is not None)


_NAME = re.compile(r"divided-(\d+)-(states-)?")
