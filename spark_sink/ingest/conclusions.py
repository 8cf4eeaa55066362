"""What a verification's chunks make of their table: its verdict, what is to be read again, and what is not proven.

Pure. Comes in: chunks with what was found of them, and Delta's id of the table. Goes out: see each function. Nothing is
durable here; `verifications` records it.
"""

from collections.abc import Iterable, Sequence

from menura.key_values import Key, travelling
from menura.landed_digest import LandedFocus, LandedRange, united
from menura.landing import LandedChunk
from menura.told_focus import MAX_FOCUS_PARTS

from spark_sink.lake.digests import Finding, Verdict
from spark_sink.work import DueChunk

#: of those that differ, which are read again: for some millions of rows, and as many ranges as are told
MOST_LEAVES = 256
MOST_PARTS = MAX_FOCUS_PARTS
REST_EQUAL = "all rows but those of ranges were equal when they were read, and these are since repair"
HEALED = "leaves of it differed, and did not when their rows were read again: verify it once more"
SINCE_UNKNOWN = (
    "from when on the rest of it was equal was not told, and a change without all values may have moved a row"
)


def conclusion(found: Sequence[tuple[DueChunk, Finding]], table_id: str = "") -> tuple[Finding, int]:
    """A table's verdict by those of its chunks, and how many rows of the source these had.

    `table_id`: Delta's, of the current state.
    """
    chain, is_whole = _in_order(found)
    rows, lake_rows = sum(chunk.rows for chunk, _ in chain), sum(finding.lake_rows for _, finding in chain)
    verdicts = [_of_table(chunk, finding, table_id) for chunk, finding in chain]
    if not is_whole:
        verdicts.append(Finding(Verdict.UNKNOWN, "a part of the table was not compared", lake_rows))
    return _worst(verdicts, lake_rows), rows


def _in_order(found: Sequence[tuple[DueChunk, Finding]]) -> tuple[list[tuple[LandedChunk, Finding]], bool]:
    """Chunks that follow each other from the key's beginning, and whether they come to its end."""
    by_lower = {}
    for due, finding in sorted(found, key=lambda each: (each[0].digest.cut, each[0].digest.chunk.chunk)):
        chunk = due.digest.chunk
        if not chunk.lower or chunk.lower != chunk.upper:  # of no keys: the next one begins there too
            by_lower[chunk.lower] = chunk, finding  # the last reading of a range counts
    chain: list[tuple[LandedChunk, Finding]] = []
    lower = ""
    values: Key | None = ()  # None: not told, as up to format 12 of the landing
    while lower in by_lower:
        chunk, finding = by_lower.pop(lower)
        digest = chunk.digest
        told = digest if digest is not None and (digest.kinds or digest.bits) else None
        if told is not None and values is not None and told.above != values:
            return chain, False
        chain.append((chunk, finding))
        lower, values = chunk.upper, told.up_to if told is not None else None
        if not lower:
            return chain, True
    return chain, False


def _of_table(chunk: LandedChunk, finding: Finding, table_id: str) -> Finding:
    """What a chunk says of its table. One of a part that is equal says nothing, but behind a repair if the rest was."""
    within = chunk.digest.within if chunk.digest is not None else None
    if finding.verdict is not Verdict.EQUAL or within is None:
        return finding
    if within.repaired_by and within.rest_equal_at_us and within.rest_equal_in == table_id:
        if not within.since_gsn:  # an older gateway or control plane has not kept it, or an older sink not told it
            return Finding(Verdict.UNKNOWN, SINCE_UNKNOWN, finding.lake_rows)
        reason = f"{REST_EQUAL} {within.repaired_by}"
        return Finding(Verdict.EQUAL, reason, finding.lake_rows, equal_leaves=finding.equal_leaves)
    return Finding(Verdict.UNKNOWN, HEALED, finding.lake_rows)


def _worst(verdicts: Sequence[Finding], lake_rows: int) -> Finding:
    """The least certain one, but for differences: these are looked for before what is not known."""
    for verdict in (Verdict.DIFFERS, Verdict.VOID, Verdict.UNKNOWN):
        of_kind = [finding for finding in verdicts if finding.verdict is verdict]
        if of_kind:
            of_kind.sort(key=lambda finding: not finding.leaves)
            leaves = tuple(leaf for finding in of_kind for leaf in finding.leaves)
            rows = tuple(row for finding in of_kind for row in finding.rows)
            return Finding(verdict, of_kind[0].reason, lake_rows, leaves, rows)
    return Finding(Verdict.EQUAL, next((found.reason for found in verdicts if found.reason), ""), lake_rows)


def focus_of(found: Iterable[tuple[DueChunk, Finding | None]], table_id: str = "", gsn: int = 0) -> LandedFocus:
    """What is to be read again: the first of the leaves that differ; of ranges those that touch are one.

    `gsn`: of the verification's beginning.
    """
    known = [(due, finding) for due, finding in found if finding is not None]
    chunks = [(due.digest.chunk, finding) for due, finding in known if finding.leaves]
    leaves = [leaf for _, finding in chunks for leaf in finding.leaves]
    chunk, first = chunks[0][0], leaves[0]
    within = chunk.digest.within if chunk.digest is not None else None
    rest = (within.rest_equal_at_us, within.rest_equal_in) if within is not None else (0, "")
    since_gsn = within.since_gsn if within is not None else 0
    if first.bits:
        buckets = tuple(leaf.bucket for leaf in leaves[:MOST_PARTS])
        ranges, kinds = (within.ranges, within.kinds) if within is not None else ((), ())
        return LandedFocus(ranges, first.bits, buckets, kinds, *rest, since_gsn=since_gsn)
    kinds = first.kinds
    ranges = united(
        [
            LandedRange("", "", *travelling(kinds, leaf.lower, leaf.upper), leaf.source_rows)
            for leaf in leaves[:MOST_LEAVES]
            if leaf.kinds == kinds
        ]
    )
    is_all = len(leaves) <= MOST_LEAVES and len(ranges) <= MOST_PARTS and {leaf.kinds for leaf in leaves} == {kinds}
    if within is None and is_all:
        at_us = rest_equal_at_us(known)
        rest, since_gsn = (at_us, table_id if at_us else ""), gsn if at_us else 0
    return LandedFocus(ranges[:MOST_PARTS], 0, (), kinds, *rest, since_gsn=since_gsn)


def is_of_one_moment(found: Sequence[tuple[DueChunk, Finding]]) -> bool:
    """Whether the whole table was read as one chunk."""
    digest = found[0][0].digest.chunk.digest if len(found) == 1 else None
    return digest is not None and digest.within is None


def since_gsn_of(found: Iterable[tuple[DueChunk, Finding]], gsn: int) -> int:
    """At which number all that a verdict is of began to be looked at; `gsn`: of the verification's own beginning."""
    digests = [due.digest.chunk.digest for due, _ in found]
    return min([gsn, *(each.within.since_gsn for each in digests if each and each.within and each.within.since_gsn)])


def told_since(found: Iterable[tuple[DueChunk, Finding]], since_gsn: int) -> int:
    """From which number on all is told that is not logged, so that what is equal stands for a dump begun there; 0: that
    is not known. `since_gsn`: the same of the verification alone."""
    digests = [due.digest.chunk.digest for due, _ in found]
    rests = [digest.within for digest in digests if digest is not None and digest.within is not None]
    return min([since_gsn, *(rest.since_gsn if rest.tells_anew else 0 for rest in rests)])


def unproven_of(found: Sequence[tuple[DueChunk, Finding]], table_id: str, since_gsn: int) -> LandedFocus | None:
    """Of a whole table, outside of which all was equal; None where that is no ranges, or too many, or stands for no
    dump. `since_gsn`: from when on all is told that is not logged."""
    chain, is_whole = _in_order(found)
    digests = [chunk.digest for chunk, _ in chain]
    kinds = {digest.kinds for digest in digests if digest is not None and not digest.bits and digest.within is None}
    is_void = any(finding.verdict is Verdict.VOID for _, finding in chain)
    if not (is_whole and table_id and since_gsn) or is_void or len(kinds) != 1 or None in digests:
        return None
    (of_key,) = kinds
    if not of_key or any(digest is None or digest.bits or digest.within is not None for digest in digests):
        return None
    bounds = [each for chunk, finding in chain for each in _unproven_bounds(chunk, finding)]
    if any(upper and not travelling(of_key, lower, upper)[1] for lower, upper, _ in bounds):
        return None  # it would be all rows from there on, however many
    ranges = united([LandedRange("", "", *travelling(of_key, lower, upper), rows) for lower, upper, rows in bounds])
    at_us = max(chunk.read_at_us for chunk, _ in chain)
    unproven = LandedFocus(ranges, 0, (), of_key, at_us, table_id, since_gsn=since_gsn, tells_anew=True)
    return unproven if 0 < len(ranges) <= MOST_PARTS else None


def _unproven_bounds(chunk: LandedChunk, finding: Finding) -> list[tuple[Key, Key, int]]:
    """Of a chunk, with the source's rows: all of it where nothing is known of its leaves."""
    if finding.verdict is Verdict.EQUAL:
        return []
    assert chunk.digest is not None
    leaves = [(leaf.lower, leaf.upper, leaf.source_rows) for leaf in finding.unproven]
    return leaves or [(chunk.digest.above, chunk.digest.up_to, chunk.rows)]


def rest_equal_at_us(found: Sequence[tuple[DueChunk, Finding]]) -> int:
    """When the source was read, of whose leaves all were equal but those that differ; 0 where one is not known."""
    chain, is_whole = _in_order(found)
    for chunk, finding in chain:
        leaves = len(chunk.digest.leaves) if chunk.digest is not None else 0
        is_whole = is_whole and finding.equal_leaves + len(finding.leaves) == leaves
    return max(chunk.read_at_us for chunk, _ in chain) if chain and is_whole else 0
