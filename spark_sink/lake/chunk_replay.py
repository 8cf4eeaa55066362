"""Rows of a chunk as the base on which later changes belong that lack values.

Comes in: rows of a chunk with the number G, and the changes above G from the changelog. Goes out: the rows that those
changes leave, with values that only the chunk knows.

Above G a row is one *life* (`partial_rows`), maybe under several keys. What no change of a life carried has been the
same all along, so the chunk's row of that life knows it, at whichever moment and under whichever key it was read. A
chunk's row with a key that more lives had above G may be any of theirs: it says nothing then, and what nobody knows
stays named in `_absent`.
"""

from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa
from menura.change_batch import CHANGE_TYPE, GSN, ChangeType

from spark_sink.lake.logged_changes import LoggedChanges
from spark_sink.lake.net_effect import DELETED, in_order
from spark_sink.lake.partial_rows import (
    GONE,
    LIFE,
    PLACE,
    Key,
    Lives,
    filled_in,
    lives_of,
    lives_that_lack,
    row_keys,
    timeline_of,
)


def replayed(rows: pa.Table, match: Sequence[str], above_gsn: int, changes: LoggedChanges) -> pa.Table:
    """Those rows (as `steps.segment_tables` gives them) of which a change above G lacks values, with these changes."""
    keys = list(row_keys(rows, match))
    ordered = in_order(changes.rows(_concerned(changes.in_order(match, above_gsn), match, set(keys))))
    lives = lives_of(ordered[CHANGE_TYPE].to_pylist(), row_keys(ordered, match))
    bases = _bases(keys, lives, list(row_keys(ordered, match)))
    wanted = sorted(lives_that_lack(ordered, lives) & set(lives.alive.values()) & set(bases))
    held = rows.take(pa.array([bases[life] for life in wanted], pa.int64())).drop_columns([DELETED])
    of_change = [life if life in wanted else GONE for life in lives.of_change]
    filled = filled_in(timeline_of(held, wanted, ordered, of_change))
    last = (
        filled.append_column("_menura_row", pa.arange(0, filled.num_rows, 1))
        .group_by(LIFE)
        .aggregate([("_menura_row", "max")])
    )
    result = filled.take(last["_menura_row_max"]).drop_columns([LIFE, PLACE])
    return result.append_column(DELETED, pa.repeat(pa.scalar(False), result.num_rows))


def _concerned(changes: pa.Table, match: Sequence[str], keys: set[Key]) -> pa.Array:
    """Numbers of the changes of these keys, and of what their rows became under other keys."""
    of_interest = set(keys)
    found: list[int] = []
    before: tuple[int, bool] | None = None  # the preimage just before, and whether it is found
    kinds, gsns = changes[CHANGE_TYPE].to_pylist(), changes[GSN].to_pylist()
    for kind, gsn, key in zip(kinds, gsns, row_keys(changes, match), strict=True):
        is_found = key in of_interest
        if kind == ChangeType.update_postimage.name and before is not None:
            if before[1] or is_found:
                of_interest.add(key)
                found.extend([gsn] if before[1] else [before[0], gsn])
            before = None
            continue
        before = (gsn, is_found) if kind == ChangeType.update_preimage.name else None
        if is_found:
            found.append(gsn)
    return pa.array(found, pa.int64())


def _bases(keys: Sequence[Key], lives: Lives, changed: Sequence[Key]) -> dict[int, int]:
    """Of each life the place of the row that is certainly its own."""
    occupants: defaultdict[Key, set[int]] = defaultdict(set)
    for life, base in enumerate(lives.base):
        if base is not None:
            occupants[base].add(life)
    for key, life in zip(changed, lives.of_change, strict=True):
        if life != GONE:
            occupants[key].add(life)
    return {life: place for place, key in enumerate(keys) if len(occupants[key]) == 1 for life in occupants[key]}
