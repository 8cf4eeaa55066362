"""Verifications and repairs by ranges of keys, as a gateway sees them, against the rows that a server has."""

from collections.abc import Sequence

from menura.key_values import Key, read
from menura.v1 import snapshot_pb2

from tests.agent.dumping import wait_dumped
from tests.agent.gateway_double import GatewayDouble, Table


def check_ranges(
    gateway: GatewayDouble, source: str, table: Table, kinds: Sequence[str], keys: Sequence[Key], columns: int
) -> snapshot_pb2.Focus:
    """Verify the table, whose rows have these values in the key's first columns, by ranges; then repair a part of it.
    Gives the part. `columns`: of the key."""
    ledger = gateway.source(source).ledger
    verification = gateway.dump(source, "verification", table, verifies=True)
    wait_dumped(gateway, verification)
    assert verification.plan is not None and len(verification.plan.key) == columns
    chunks = sorted((each for each in ledger.chunks), key=lambda each: (each.end.range, each.number))
    assert len(chunks) > 3
    reached: Key = ()
    ends: list[Key] = []
    for chunk in chunks:
        digest = chunk.end.digest
        assert list(digest.kinds) == list(kinds) and not digest.bits and read(kinds, digest.above) == reached
        reached = read(kinds, digest.up_to)
        uppers = [read(kinds, leaf.up_to) for leaf in digest.leaves[:-1]] + [reached]
        for leaf, upper in zip(digest.leaves, uppers, strict=True):
            lower = ends[-1] if ends else ()
            assert leaf.rows == sum(key > lower and (not upper or key <= upper) for key in keys), (lower, upper)
            ends.append(upper)
    assert reached == () and sum(chunk.end.row_count for chunk in chunks) == len(keys)
    above, up_to = ends[len(ends) // 4], ends[len(ends) // 2]
    bounds = ((above, up_to), (ends[-2], ()))
    parts = [snapshot_pb2.FocusRange(above=map(str, low), up_to=map(str, high)) for low, high in bounds]
    focus = snapshot_pb2.Focus(ranges=parts, kinds=kinds)
    inside = [key for key in keys if above < key <= up_to or key > ends[-2]]
    wait_dumped(gateway, gateway.dump(source, "proof", table, focus=focus, verifies=True))
    assert 0 < ledger.chunks[-1].end.row_count == len(inside) < len(keys)
    wait_dumped(gateway, gateway.dump(source, "repair", table, focus=focus))
    assert ledger.received_rows == len(inside), "no other row was read"
    return focus
