"""What the gateway does when storage or registry fail: nothing is acknowledged that is not durable, others go on."""

import asyncio
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from menura.landing import IDENTITY_PATH, LandedCut, LandedPosition, LogEntry, encode_entry, entry_path
from menura.stores.local import LocalStore
from menura.stores.store import MOST_BYTES, OutcomeUnknown

from gateway import server
from gateway.config import GatewayConfig
from gateway.errors import (
    LandingFailed,
    LandingUnusable,
    ListenRefused,
    LogBehindRegistry,
    LogUnreadable,
    LogUnsettled,
)
from gateway.landing.cut_log import CutLog, EntryTaken
from gateway.registry import GatewayRun, SourceKey
from tests.gateway.harness import data_files, landed_gsns, read_log, running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import (
    change_batch,
    commit_cut,
    cut_end,
    eventually,
    rows_batch,
    scripted_agent,
)


@contextmanager
def file_size_limit(limit_bytes: int) -> Iterator[None]:
    """The kernel refuses what would make a file larger, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_a_disk_that_is_full_when_a_cut_is_written_fails_that_cut_alone(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    for source in ("shop", "crm"):
        registry.want("acme", source, "orders")

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry) as address,
            scripted_agent(address, "shop", "crm") as agent,
        ):
            shop, shop_run = await agent.open_binlog("shop")
            crm, crm_run = await agent.open_binlog("crm")
            await commit_cut(shop, shop_run, 1, range(1, 11))
            with file_size_limit(40_000):
                await shop.send_batch(change_batch(shop_run, 2, "orders", rows_batch(range(11, 60_000))))
                await shop.send(cut_end=cut_end(shop_run, 2, 59_999))
                error = await shop.expect_error()
                assert (error.code, error.terminal) == ("LANDING_FAILED", False)
                assert "File too large" in error.found
                await commit_cut(crm, crm_run, 1, range(1, 11))
            await eventually("the failed cut's file to go", lambda: len(data_files(tmp_path)) == 2)
            shop, shop_run = await agent.open_binlog("shop")
            assert shop_run.next_gsn == 11
            await commit_cut(shop, shop_run, 2, range(11, 60_000))

    asyncio.run(scenario())
    cuts = [cut for entry in read_log(tmp_path) for cut in entry.cuts]
    assert [(cut.source, cut.cut, cut.last_gsn) for cut in cuts] == [
        ("shop", 1, 10),
        ("crm", 1, 10),
        ("shop", 2, 59_999),
    ]


def test_a_log_that_can_not_be_written_when_a_cut_ends_fails_the_cut_until_it_can(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            (tmp_path / "log").write_text("a file where the folder should be")
            stream, run = await agent.open_binlog("shop")
            await stream.send_batch(change_batch(run, 1, "orders", rows_batch(range(1, 11))))
            await stream.send(cut_end=cut_end(run, 1, 10))
            assert (await stream.expect_error()).code == "LANDING_FAILED"
            await eventually("dropped files to go", lambda: not data_files(tmp_path))
            (tmp_path / "log").unlink()
            stream, run = await agent.open_binlog("shop")
            await commit_cut(stream, run, 1, range(1, 11))

    asyncio.run(scenario())
    assert landed_gsns(tmp_path) == list(range(1, 11))


def test_the_registry_when_it_is_away_delays_the_acknowledgement_and_loses_nothing(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            registry.away = True
            await stream.send_batch(change_batch(run, 1, "orders", rows_batch(range(1, 11))))
            await stream.send(cut_end=cut_end(run, 1, 10))
            await eventually("the log entry", lambda: read_log(tmp_path))
            assert registry.positions == {}
            assert all(message.WhichOneof("payload") != "cut_committed" for message in stream.unread)
            late = await agent.open("MySQLBinlog", "shop")  # must not begin from what the registry does not know yet
            registry.away = False
            replicate = await late.expect("replicate")
            assert (replicate.next_cut, replicate.next_gsn) == (2, 11)
            await commit_cut(late, replicate, 2, range(11, 21))

    asyncio.run(scenario())
    assert landed_gsns(tmp_path) == list(range(1, 21))


def test_the_registry_when_it_stays_away_does_not_keep_the_gateway_from_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STOP_SECONDS", 0.5)
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            registry.away = True
            await stream.send(cut_end=cut_end(run, 1, 0))
            await eventually("the log entry", lambda: read_log(tmp_path))
        registry.away = False
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            _, run = await agent.open_binlog("shop")
            assert run.next_cut == 2

    asyncio.run(scenario())


def test_a_gateway_when_it_starts_applies_the_entries_that_the_registry_lacks(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def land(cut: int) -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            assert run.next_cut == cut
            await commit_cut(stream, run, cut, range(cut * 10 - 9, cut * 10 + 1))

    asyncio.run(land(1))
    asyncio.run(land(2))
    fresh = MemoryRegistry()
    fresh.want("acme", "shop", "orders")
    registry = fresh
    asyncio.run(land(3))
    assert [[cut.cut for cut in entry.cuts] for entry in fresh.entries] == [[1], [], [2], [], [3]]  # with two fences
    assert landed_gsns(tmp_path) == list(range(1, 31))


def test_a_log_that_lacks_what_the_registry_holds_when_the_gateway_starts_is_refused(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    registry.applied[str(tmp_path)] = 4

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry):
            pytest.fail("it serves")

    with pytest.raises(LogBehindRegistry, match="holds entry 4"):
        asyncio.run(scenario())


def test_an_entry_of_another_format_when_the_log_is_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / entry_path(1)).parent.mkdir(parents=True)
    (tmp_path / entry_path(1)).write_text('{"format": 99}')
    with pytest.raises(LogUnreadable, match="format 99"):
        CutLog(LocalStore(tmp_path), "landing", "gw").recover(MemoryRegistry())


class Shaky(LocalStore):
    """Each put into the log does what its script says: 'lost' fails before, 'unknown' fails after it was written.

    After 'twice', written and sent again on its way, it is there already, and can't be read at once.
    """

    def __init__(self, root: Path, *script: str) -> None:
        super().__init__(root)
        self.script = list(script)
        self.is_unread = False

    def put_if_absent(self, path: str, document: bytes) -> bool:
        step = self.script.pop(0) if self.script and path != IDENTITY_PATH else "ok"
        if step == "lost":
            raise OutcomeUnknown("lost")
        if step == "refused":
            raise PermissionError(13, "Permission denied")
        written = super().put_if_absent(path, document)
        if step == "unknown":
            raise OutcomeUnknown("written, answer lost")
        self.is_unread = step == "twice"
        return written and step != "twice"

    def read(self, path: str, most_bytes: int = MOST_BYTES) -> bytes | None:
        if self.is_unread:
            self.is_unread = False
            raise TimeoutError(110, "timed out")
        return super().read(path, most_bytes)


def cut(number: int) -> LandedCut:
    return LandedCut("acme", "shop", 1, number, 1, "mysql", LandedPosition(), number * 10, number)


def log_over(storage: LocalStore) -> CutLog:
    log = CutLog(storage, "landing", "gw", sleep=lambda _: None)
    log.recover(MemoryRegistry())
    return log


@pytest.mark.parametrize(
    "script", [("unknown",), ("lost",), ("lost", "unknown"), ("lost", "refused", "unknown"), ("twice",)]
)
def test_a_put_whose_outcome_is_unknown_when_it_is_settled_counts_once(tmp_path: Path, script: tuple[str, ...]) -> None:
    log = log_over(Shaky(tmp_path, *script))
    assert log.append([cut(1)], 7).entry == 1
    assert log.append([cut(2)], 8).entry == 2
    assert [[landed.cut for landed in entry.cuts] for entry in read_log(tmp_path)] == [[1], [2]]


def test_a_put_that_is_refused_when_nothing_was_written_fails_and_keeps_the_number(tmp_path: Path) -> None:
    log = log_over(Shaky(tmp_path, "refused"))
    with pytest.raises(LandingFailed, match="Permission denied") as failed:
        log.append([cut(1)], 7)
    assert not isinstance(failed.value, LogUnsettled)
    assert log.append([cut(1)], 8).entry == 1


class Replacing(LocalStore):
    """As an object store that does not know the condition of a put."""

    def put_if_absent(self, path: str, document: bytes) -> bool:
        self.put(path, document)
        return True


def test_a_store_that_replaces_what_is_there_when_the_landing_is_opened_is_refused(tmp_path: Path) -> None:
    log_over(LocalStore(tmp_path))
    before = (tmp_path / IDENTITY_PATH).read_bytes()
    for folder in (tmp_path, tmp_path / "new"):
        with pytest.raises(LandingUnusable, match="replaces a file"):
            log_over(Replacing(folder))
    assert (tmp_path / IDENTITY_PATH).read_bytes() == before


def test_a_put_that_stays_unknown_when_it_appears_later_is_found_as_taken(tmp_path: Path) -> None:
    log = log_over(Shaky(tmp_path, *["lost"] * 4))
    with pytest.raises(LogUnsettled):
        log.append([cut(1)], 7)
    late = LogEntry(1, "gw", 7, (cut(1),))
    LocalStore(tmp_path).put_if_absent(entry_path(1), encode_entry(late))
    with pytest.raises(EntryTaken):
        log.append([cut(1)], 8)
    assert (log.read_next(), log.read_next()) == (late, None)
    assert log.append([cut(2)], 9).entry == 2


def test_a_source_that_another_gateway_took_when_the_lease_is_renewed_ends_its_stream(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry, lease_seconds=6) as address,
            scripted_agent(address, "shop") as agent,
        ):
            stream, _ = await agent.open_binlog("shop")
            registry.gateways["other"] = GatewayRun("other", "run")
            registry.owners[SourceKey("acme", "shop")] = registry.gateways["other"]
            registry.sessions[SourceKey("acme", "shop")] = "another agent's"
            assert (await stream.expect_error()).code == "LEASE_LOST"
            late = await agent.open("MySQLBinlog", "shop")
            assert (await late.expect_error()).code == "LEASE_LOST"

    asyncio.run(scenario())


@pytest.mark.parametrize("listen", ["0.0.0.0:7070", "10.0.0.1:7070", "gateway.example:7070", "[::]:7070"])
def test_an_address_beyond_loopback_when_there_is_no_certificate_is_refused(listen: str) -> None:
    with pytest.raises(ListenRefused, match="there is no TLS"):
        GatewayConfig("/tmp/landing", listen=listen)


@pytest.mark.parametrize("listen", ["7070", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:http"])
def test_an_address_when_it_is_malformed_is_refused(listen: str) -> None:
    with pytest.raises(ListenRefused, match="HOST:PORT"):
        GatewayConfig("/tmp/landing", listen=listen)


def test_a_port_in_use_when_the_gateway_starts_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, MemoryRegistry()) as address,
            running_gateway(tmp_path, MemoryRegistry(), listen=address),
        ):
            pytest.fail("it serves")

    with pytest.raises(ListenRefused, match="can't be bound"):
        asyncio.run(scenario())


def test_a_landing_of_an_unknown_scheme_when_it_is_opened_is_refused() -> None:
    async def scenario() -> None:
        async with running_gateway("nosuch://bucket/landing", MemoryRegistry()):
            pytest.fail("it serves")

    with pytest.raises(LandingUnusable, match="scheme nosuch"):
        asyncio.run(scenario())


def test_the_registry_when_it_is_away_as_the_gateway_stops_leaves_the_files_of_what_the_log_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STOP_SECONDS", 0.5)
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            registry.away = True
            await stream.send_batch(change_batch(run, 1, "orders", rows_batch(range(1, 11))))
            await stream.send(cut_end=cut_end(run, 1, 10))
            await eventually("the log entry", lambda: read_log(tmp_path))

    asyncio.run(scenario())
    assert landed_gsns(tmp_path) == list(range(1, 11))
