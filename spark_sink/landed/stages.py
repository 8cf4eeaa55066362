"""A table's files and events in the order of their numbers: events, and between them the rows.

Pure but for reading the files. A file may hold rows from both sides of an event (a TRUNCATE does not change the
columns, so the rows before and after it land together); it is then taken in slices. A dump's chunk of a range has its
place at its cut's end, after all of the cut's events.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_sink.landed.landed_file import LandedPart, LandedSlice
from spark_sink.work import CutEvent


@dataclass(frozen=True, slots=True)
class Stage:
    """An event and the rows after it, up to the next event; the first stage may be without an event."""

    event: CutEvent | None
    parts: tuple[LandedPart, ...]
    #: every number up to here is done once the stage is
    last_gsn: int

    @property
    def removes_rows(self) -> bool:
        return self.event is not None and self.event.event.removes_rows


def stages(work: Sequence[LandedPart | CutEvent]) -> list[Stage]:
    """What a table has to follow, in order; a stage without event and rows is left out."""
    events = [each for each in work if isinstance(each, CutEvent)]
    parts = [each for each in work if not isinstance(each, CutEvent)]
    if not events:
        return [Stage(None, tuple(parts), max(part.file.last_gsn for part in parts))] if parts else []
    chunks = [part for part in parts if part.file.is_range]
    parts = [part for part in parts if not part.file.is_range]
    events.sort(key=lambda event: event.first_gsn)
    highest = max([*(part.file.last_gsn for part in [*parts, *chunks]), events[-1].first_gsn])
    bounds = [event.first_gsn for event in events]
    found = []
    for event, after, before in zip([None, *events], [0, *bounds], [*bounds, highest + 1], strict=True):
        slices = [piece for part in parts if (piece := _slice(part, after, before)) is not None]
        slices += [chunk for chunk in chunks if after <= chunk.file.first_gsn < before]
        # A slice may begin at the number of a whole table's rows; its own come later.
        slices.sort(key=lambda part: (part.file.first_gsn, part.file.chunk is None))
        if event is not None or slices:
            found.append(Stage(event, tuple(slices), before - 1))
    return found


def _slice(part: LandedPart, after_gsn: int, before_gsn: int) -> LandedPart | None:
    """The part's rows between two events; None where it has none there."""
    file = part.file
    if after_gsn < file.first_gsn and file.last_gsn < before_gsn:
        return part
    first, last = max(file.first_gsn, after_gsn + 1), min(file.last_gsn, before_gsn - 1)
    if first > last:
        return None
    piece = LandedSlice(part, replace(file, first_gsn=first, last_gsn=last))
    return piece if any(rows.num_rows for rows in piece.tables()) else None
