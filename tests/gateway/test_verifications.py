"""Chunks of a verification: what lands of them is their digest, in the cut log, and no row; what no honest agent says
of one ends the stream."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from menura.landed_digest import LandedDigest, LandedLeaf
from menura.landing import decode_chunk, decode_entry, encode_entry
from menura.v1.snapshot_pb2 import Digest, HashedColumn, Leaf

from gateway.errors import PayloadInvalid
from gateway.wire.digest import landed_digest
from tests.gateway.dump_script import dump_begun, open_dump, registry
from tests.gateway.harness import data_files, read_log, running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import (
    chunk_end,
    scripted_agent,
    snapshot_batch,
    snapshot_rows,
    table_event,
)

__all__ = ["registry"]


def digest(*leaves: Leaf, up_to: Sequence[str] = ()) -> Digest:
    return Digest(
        columns=[HashedColumn(name="id", arrow_format="l"), HashedColumn(name="total", arrow_format="d:12,2")],
        key=["id"],
        kinds=["integer"],
        up_to=up_to,
        leaves=leaves or [Leaf(up_to=["200"], rows=150, first_sum=-7, second_sum=2**63 - 1), Leaf(rows=50)],
    )


LANDED = LandedDigest(
    (("id", "l"), ("total", "d:12,2")),
    ("id",),
    (LandedLeaf((200,), 150, -7, 2**63 - 1), LandedLeaf((), 50, 0, 0)),
    kinds=("integer",),
    up_to=(300,),
)


def test_a_verification_when_cuts_name_its_chunks_then_digests_stand_in_the_log_and_no_row_lands(
    tmp_path: Path, registry: MemoryRegistry
) -> None:
    dump = registry.want_dump("acme", "shop", "orders", verifies=True, tells_anew=True)

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            script = await open_dump(agent, dump)
            assert script.order.verifies and script.order.tells_anew
            await script.plan()
            started = script.gsn + 1
            begins = table_event(started, "VERIFICATION_STARTED", dump=dump, tells_anew=True)
            await script.end_cut(events=[begins])
            await script.client.send(chunk_end=chunk_end(dump, 1, "", '["300"]', 200, digest=digest(up_to=["300"])))
            assert (await script.client.expect("chunk_landed")).chunk == 1
            empty = Digest(key=["id"], kinds=["integer"], above=["300"], leaves=[Leaf()])
            await script.client.send(chunk_end=chunk_end(dump, 2, '["300"]', "", 0, digest=empty))
            await script.client.expect("chunk_landed")
            await script.end_cut((1, started), (2, started))
            await script.client.expect("chunks_committed")
            await script.end_cut(events=[table_event(script.gsn + 1, "VERIFIED", dump=dump)])
            await script.until_over()

    asyncio.run(scenario())
    entries = read_log(tmp_path)
    chunks = [chunk for entry in entries for cut in entry.cuts for chunk in cut.chunks]
    assert [chunk.digest for chunk in chunks] == [
        LANDED,
        LandedDigest((), ("id",), (LandedLeaf((), 0, 0, 0),), kinds=("integer",), above=(300,)),
    ]
    assert [chunk.rows for chunk in chunks] == [200, 0]
    landed = [event for entry in entries for cut in entry.cuts for event in cut.events]
    events = [(event.kind, event.dump, event.removes_rows, event.reread) for event in landed]
    assert events == [("VERIFICATION_STARTED", dump, False, True), ("VERIFIED", dump, False, False)]
    assert data_files(tmp_path) == []
    assert registry.ledger.done == [dump]
    for entry in entries:
        assert decode_entry(encode_entry(entry)) == entry


@pytest.mark.parametrize(
    "lie",
    [
        lambda dump: {"snapshot_batch": snapshot_batch(dump, 1, snapshot_rows([1]))},
        lambda dump: {"chunk_end": chunk_end(dump, 1, "", "", 0)},
        lambda dump: {"chunk_end": chunk_end(dump, 1, "", "", 199, digest=digest())},
        lambda dump: {"chunk_end": chunk_end(dump, 1, "", "", 200, digest=digest(up_to=["300"]))},
        lambda dump: {"chunk_end": chunk_end(dump, 1, "", '["300"]', 200, digest=digest())},
    ],
    ids=["rows", "no digest", "other rows", "an end that is none", "no end"],
)
def test_a_verification_when_its_agent_lies_then_the_stream_ends_and_nothing_lands(
    lie: Callable[[str], dict[str, object]], tmp_path: Path, registry: MemoryRegistry
) -> None:
    dump = registry.want_dump("acme", "shop", "orders", verifies=True)

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            script = await open_dump(agent, dump)
            await script.plan()
            await script.client.send(**lie(dump))
            assert (await script.client.expect("error")).code == "PAYLOAD_INVALID"

    asyncio.run(scenario())
    assert data_files(tmp_path) == []
    assert not [chunk for entry in read_log(tmp_path) for cut in entry.cuts for chunk in cut.chunks]


def test_an_event_when_it_tells_anew_and_begins_no_verification_then_the_stream_ends(
    tmp_path: Path, registry: MemoryRegistry
) -> None:
    dump = registry.want_dump("acme", "shop", "orders")

    async def scenario() -> None:
        async with dump_begun(tmp_path, registry, dump) as (script, _):
            events = [table_event(script.gsn + 1, "LOG_GAP", unlogged_changes="purged", tells_anew=True)]
            await script.end_cut(events=events, settle=False)
            assert (await script.binlog.expect("error")).code == "PAYLOAD_INVALID"

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["VERIFICATION_STARTED", "VERIFIED"])
def test_a_dump_when_an_event_says_that_it_is_a_verification_then_the_stream_ends(
    kind: str, tmp_path: Path, registry: MemoryRegistry
) -> None:
    dump = registry.want_dump("acme", "shop", "orders")

    async def scenario() -> None:
        async with dump_begun(tmp_path, registry, dump) as (script, _):
            events = [table_event(script.gsn + 1, kind, dump=dump)]
            await script.end_cut(events=events, settle=False)
            assert (await script.binlog.expect("error")).code == "PAYLOAD_INVALID"

    asyncio.run(scenario())


def test_a_digest_of_a_dump_when_it_comes_then_the_stream_ends(tmp_path: Path, registry: MemoryRegistry) -> None:
    dump = registry.want_dump("acme", "shop", "orders")

    async def scenario() -> None:
        async with dump_begun(tmp_path, registry, dump) as (script, _):
            await script.client.send(chunk_end=chunk_end(dump, 1, "", "", 200, digest=digest()))
            assert (await script.client.expect("error")).code == "PAYLOAD_INVALID"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        (Digest(columns=[HashedColumn(name="id", arrow_format="l")] * 2), "name of its own"),
        (Digest(columns=[HashedColumn(name="", arrow_format="l")]), "impossible name"),
        (Digest(columns=[HashedColumn(name="x", arrow_format="d:39,0")]), "no source type"),
        (Digest(key=["id", "id"]), "a key of 3 columns"),
        (Digest(leaves=[Leaf(rows=1)]), "whose rows are not"),
        (Digest(leaves=[Leaf(up_to=["300"])]), "a last one that does"),
        (Digest(kinds=["integer"]), "other kinds"),
        (Digest(up_to=["200"]), "do not follow"),
        (Digest(above=["1", "2"]), "no key of its kinds"),
        (Digest(above=["1e5"]), "no key of its kinds"),
        (Digest(above=[str(1 << 64)]), "no key of its kinds"),
    ],
)
def test_a_digest_when_it_is_none_then_is_refused(changed: Digest, found: str) -> None:
    made = digest()
    made.MergeFrom(changed)
    with pytest.raises(PayloadInvalid, match=found):
        landed_digest(made, 200)


def test_a_digest_when_its_leaves_do_not_follow_each_other_then_is_refused() -> None:
    for bounds in (["2", "1", ""], ["1", "1", ""], ["1 2", ""], ["", ""]):
        with pytest.raises(PayloadInvalid):
            landed_digest(digest(*(Leaf(up_to=bound.split()) for bound in bounds)), 0)
    with pytest.raises(PayloadInvalid, match="not hashed"):
        landed_digest(Digest(key=["id"], kinds=["integer"], leaves=[Leaf(rows=1)]), 1)
    with pytest.raises(PayloadInvalid, match="leaves"):
        landed_digest(Digest(key=["id"], kinds=["integer"]), 0)


def test_a_digest_when_its_chunk_has_no_keys_then_is_taken_without_rows_alone() -> None:
    empty = Digest(key=["id"], kinds=["integer"], above=["300"], up_to=["300"], leaves=[Leaf()])
    made = landed_digest(empty, 0)
    assert (made.above, made.up_to, made.leaves) == ((300,), (300,), (LandedLeaf((), 0, 0, 0),))
    columns = [HashedColumn(name="id", arrow_format="l")]
    for leaves, rows in (([Leaf(rows=1)], 1), ([Leaf(up_to=["300"]), Leaf()], 0), ([Leaf(up_to=["299"]), Leaf()], 0)):
        with pytest.raises(PayloadInvalid, match="do not follow"):
            landed_digest(
                Digest(columns=columns, key=["id"], kinds=["integer"], above=["300"], up_to=["300"], leaves=leaves),
                rows,
            )
    empty.up_to[:] = ["299"]
    with pytest.raises(PayloadInvalid, match="do not follow"):
        landed_digest(empty, 0)


def test_an_entry_when_it_is_of_a_format_without_digests_then_its_chunks_bring_rows() -> None:
    chunk = {
        "database": "shop", "table": "orders", "dump": "0f8e", "chunk": 1, "gsn": 5, "range": 0, "lower": "",
        "upper": "", "last_of_range": True, "rows": 1, "source_bytes": 9, "read_at_us": 1, "read_us": 1, "position": "",
    }  # fmt: skip
    assert decode_chunk(chunk).digest is None
