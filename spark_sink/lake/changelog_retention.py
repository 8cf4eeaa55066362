"""How much of a table's changelog is kept: by age, by rows, or (unless somebody says otherwise) all of it.

Comes in: the two Delta tables after a batch, in their turn, and what is to be kept. Goes out: the changelog without
its oldest rows. Beside the layout its properties hold `menura.changelog`, a JSON document: `begins_gsn`, the lowest
number from which on all changes are there (0: all ever were), and `marks`, up to which number the current state was
when: rows count from when they came into the lake, not from their commit, so a lake that catches up loses nothing that
nobody could read yet.

Never cut off is what came within the hours that old versions are readable, what the current state lacks (`tail`),
what came since a dump began that has not ended (its chunks are compared with later changes), and anything of a table
that others follow by foreign keys (whoever calls knows that). A chunk or a child that comes late and needs what is gone
stops its table. The property is written first: a kill between says that more is gone than is, until the next turn.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import pyarrow as pa
from deltalake import DeltaTable
from menura.change_batch import GSN

from spark_sink.lake.delta_table import WRITER, open_dump_gsn, quoted, read_progress
from spark_sink.work import TableId, last_rule

PROPERTY = "menura.changelog"
#: older ones are thinned out
MOST_MARKS = 32
#: less than this part of the rows is not worth a commit
LEAST_PART = 1 / 8
HOUR_US = 3_600_000_000


@dataclass(frozen=True, slots=True)
class Keep:
    """Of a changelog; zeros: without a limit. Of two limits the one counts that keeps less."""

    hours: int = 0
    rows: int = 0

    @property
    def all(self) -> bool:
        return not self.hours and not self.rows


@dataclass(frozen=True, slots=True)
class KeepRules:
    """What is kept of which tables: the last rule that a table's name fits counts, none keeps all.

    >>> rules = KeepRules.parse(["30d", "acme/shop/shop.order*=1000000rows", "acme/shop/shop.orders=forever"])
    >>> rules.of(TableId("acme", "shop", "shop", "items")).hours
    720
    >>> rules.of(TableId("acme", "shop", "shop", "order_lines"))
    Keep(hours=0, rows=1000000)
    >>> rules.of(TableId("acme", "shop", "shop", "orders")).all
    True
    """

    rules: tuple[tuple[str, Keep], ...] = ()

    @classmethod
    def parse(cls, words: Sequence[str]) -> "KeepRules":
        """From `[TENANT/SOURCE/DATABASE.TABLE=]N`, with `h`, `d` or `rows` behind N, or `forever` for it.

        Raises ValueError.
        """
        return cls(tuple(map(_rule, words)))

    def of(self, table: TableId) -> Keep:
        return last_rule(self.rules, table, Keep())


KEEP_ALL = KeepRules()


def _rule(word: str) -> tuple[str, Keep]:
    pattern, _, limit = word.rpartition("=")
    if limit == "forever":
        return pattern or "*", Keep()
    for unit, name, factor in (("h", "hours", 1), ("d", "hours", 24), ("rows", "rows", 1)):
        number = limit.removesuffix(unit)
        if number != limit and number.isascii() and number.isdigit() and int(number):
            return pattern or "*", replace(Keep(), **{name: int(number) * factor})
    raise ValueError(f"{word!r} ends neither in a number of h, d or rows nor in forever")


@dataclass(frozen=True, slots=True)
class Kept:
    """What a changelog's property says."""

    begins_gsn: int = 0
    #: microseconds since the epoch, and a number; both only grow
    marks: tuple[tuple[int, int], ...] = ()

    def marked(self, at_us: int, gsn: int) -> "Kept":
        """With one more mark; those of a clock that was ahead then go."""
        found = [(at, number) for at, number in self.marks if at < at_us]
        if not found or found[-1][1] < gsn:
            found.append((at_us, gsn))
        while len(found) > MOST_MARKS:  # of neighbours that are near to each other the later one goes
            spans = [after[0] - before[0] for before, after in zip(found, found[2:], strict=False)]
            del found[spans.index(min(spans)) + 1]
        return replace(self, marks=tuple(found))

    def before(self, at_us: int) -> int:
        """Up to which number all had come by then; 0 where nobody knows."""
        return max((gsn for at, gsn in self.marks if at <= at_us), default=0)


def read_kept(changelog: DeltaTable) -> Kept:
    facts = json.loads(changelog.metadata().configuration.get(PROPERTY, "{}"))
    return Kept(facts.get("begins_gsn", 0), tuple((at, gsn) for at, gsn in facts.get("marks", ())))


def shorten(
    table: TableId, changelog: DeltaTable, current: DeltaTable, keep: Keep, keep_hours: int, now_us: int
) -> int:
    """Cut off what need not be kept; gives the number from which on all changes are there.

    Raises OSError, DeltaError.
    """
    merged = read_progress(current, table.application).gsn
    kept = read_kept(changelog).marked(now_us, merged)
    # Only what was there at this turn's beginning counts, also where no version is kept.
    readable_gsn = kept.before(now_us - keep_hours * HOUR_US)
    most_gsn = min(merged, readable_gsn)
    open_gsn = open_dump_gsn(current, changelog, table.application)
    if open_gsn is not None:
        most_gsn = min(most_gsn, open_gsn - 1)
    files = files_by_number(changelog)
    wanted_gsn = max(
        kept.before(now_us - keep.hours * HOUR_US) if keep.hours else 0,
        _above_rows(files, keep.rows) if keep.rows else 0,
    )
    cut = _whole_files(files, min(most_gsn, wanted_gsn))
    if cut and sum(file.rows for file in cut) >= LEAST_PART * sum(file.rows for file in files):
        last_gsn = max(file.high for file in cut)
        kept = replace(kept, begins_gsn=max(kept.begins_gsn, last_gsn + 1))
        write_kept(changelog, kept)
        changelog.delete(f"{quoted(GSN)} <= {last_gsn}", writer_properties=WRITER)
    elif kept != read_kept(changelog):
        write_kept(changelog, kept)
    return kept.begins_gsn


def write_kept(changelog: DeltaTable, kept: Kept) -> None:
    """In a commit of its own."""
    changelog.alter.set_table_properties({PROPERTY: json.dumps(asdict(kept))}, raise_if_not_exists=False)


@dataclass(frozen=True, slots=True)
class LoggedFile:
    """Its lowest and highest number, and how many rows it has."""

    low: int
    high: int
    rows: int


def files_by_number(changelog: DeltaTable) -> list[LoggedFile]:
    """By their highest number; none where one has no statistics."""
    found = pa.table(changelog.get_add_actions(flatten=True))
    names = (f"min.{GSN}", f"max.{GSN}", "num_records")
    if any(name not in found.column_names or found[name].null_count for name in names):
        return []
    files = [LoggedFile(*facts) for facts in zip(*(found[name].to_pylist() for name in names), strict=True)]
    return sorted(files, key=lambda file: file.high)


def _above_rows(files: Sequence[LoggedFile], most_rows: int) -> int:
    """The number up to which files may go so that at least so many rows stay; 0: none may."""
    rows = sum(file.rows for file in files)
    number = 0
    for file in files:
        rows -= file.rows
        if rows < most_rows:
            break
        number = file.high
    return number


def _whole_files(files: Sequence[LoggedFile], gsn: int) -> list[LoggedFile]:
    """Files of which all rows have this number or a lower one, and no other file has rows as low as theirs."""
    cut = [file for file in files if file.high <= gsn]
    while cut and any(file.low <= cut[-1].high for file in files[len(cut) :]):
        cut.pop()
    return cut
