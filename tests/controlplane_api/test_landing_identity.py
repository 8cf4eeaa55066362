"""A database belongs to one landing: another one is refused by name, before anything is read or written."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from menura.landing import IDENTITY_PATH, LandedCut, decode_identity, entry_path
from menura.stores.local import LocalStore

from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.errors import LogBehindRegistry, LogUnreadable, OtherLanding
from gateway.landing.cut_log import CutLog
from gateway.registry import SourceKey
from tests.controlplane_api.facts import KEY, cut, entry, file, started
from tests.gateway.harness import read_log, running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import change_batch, cut_end, rows_batch, scripted_agent


def opened(folder: Path, registry: SqlRegistry) -> CutLog:
    log = CutLog(LocalStore(folder), str(folder), "gw-1")
    log.recover(registry)
    return log


def land(log: CutLog, registry: SqlRegistry, *cuts: LandedCut) -> None:
    registry.apply_entry(log.landing, log.append(cuts, 7))


def identity(folder: Path) -> str:
    return decode_identity((folder / IDENTITY_PATH).read_bytes()).landing


def test_landing_when_it_is_opened_first_then_its_entries_and_the_database_have_its_identity(
    registry: SqlRegistry, tmp_path: Path
) -> None:
    for number in (1, 2):
        land(opened(tmp_path / "a", registry), registry, cut(number, file("orders")))
    assert {found.landing for found in read_log(tmp_path / "a")} == {identity(tmp_path / "a")}
    assert registry.claim_landing("another address", identity(tmp_path / "a")) == str(tmp_path / "a")


@pytest.mark.parametrize("way", ["beside", "in its place", "without its identity", "emptied"])
def test_landing_when_it_is_not_the_databases_then_the_gateway_refuses_it_by_name(
    registry: SqlRegistry, tmp_path: Path, way: str
) -> None:
    folder = tmp_path / "a"
    land(opened(folder, registry), registry, cut(1, file("orders")))
    former = identity(folder)
    if way == "beside":
        folder = tmp_path / "b"
        CutLog(LocalStore(folder), str(folder), "gw-2").recover(MemoryRegistry())
    elif way == "in its place":
        shutil.rmtree(folder)
        other = CutLog(LocalStore(folder), str(folder), "gw-2")
        other.recover(MemoryRegistry())
        other.append([cut(1, file("orders"))], 7)
    else:
        (folder / IDENTITY_PATH).unlink()
        if way == "emptied":
            shutil.rmtree(folder / "log")
    names = [path.name for path in folder.rglob("*")]
    with pytest.raises(OtherLanding, match=former) as refused:
        opened(folder, registry)
    assert str(folder) in str(refused.value)
    assert [path.name for path in folder.rglob("*")] == names
    assert registry.committed(KEY).cut == 1


def test_landing_when_it_was_moved_then_the_database_goes_on_with_it_under_the_name_that_it_has(
    registry: SqlRegistry, tmp_path: Path
) -> None:
    for number in (1, 2):
        land(opened(tmp_path / "a", registry), registry, cut(number, file("orders")))
    (tmp_path / "a").rename(tmp_path / "b")
    log = opened(tmp_path / "b", registry)
    assert (log.next_entry, log.landing, registry.applied_entry(log.landing)) == (3, str(tmp_path / "a"), 2)
    land(log, registry, cut(3, file("orders")))
    assert registry.committed(KEY).cut == 3


def test_landing_of_an_earlier_version_when_it_is_opened_then_it_gets_an_identity_if_it_has_the_databases_entries(
    registry: SqlRegistry, tmp_path: Path
) -> None:
    former = replace(entry(1, cut(1, file("orders"))), landing="")
    registry.apply_entry(str(tmp_path / "a"), former)
    with pytest.raises(LogBehindRegistry):
        opened(tmp_path / "a", registry)
    assert not (tmp_path / "a" / IDENTITY_PATH).exists()
    other = CutLog(LocalStore(tmp_path / "a"), str(tmp_path / "a"), "gw-1")
    other.append([cut(1, file("orders"))], 7)  # of a log that nobody has opened: without an identity
    for number in (2, 3):
        log = opened(tmp_path / "a", registry)
        assert log.next_entry == number
        land(log, registry, cut(number, file("orders")))
    assert registry.claim_landing("", identity(tmp_path / "a")) == str(tmp_path / "a")
    written = [str(path.relative_to(tmp_path / "a")) for path in (tmp_path / "a" / "log").rglob("*.json")]
    assert sorted(written) == [entry_path(number, in_folders=False) for number in (1, 2, 3)]


def test_log_when_its_landing_is_new_then_no_folder_has_more_than_a_thousand_entries(
    registry: SqlRegistry, tmp_path: Path
) -> None:
    log = opened(tmp_path / "a", registry)
    log.skip_to(999)
    for number in range(1, 4):
        log.append([cut(number, file("orders"))], 7)
    folders = sorted(path.name.lstrip("0") or "0" for path in (tmp_path / "a" / "log").iterdir())
    assert folders == ["0", "1"]
    assert (tmp_path / "a" / entry_path(1000)).parent.name.endswith("1")


def test_landing_when_a_later_version_made_it_then_the_gateway_refuses_it(
    registry: SqlRegistry, tmp_path: Path
) -> None:
    (tmp_path / IDENTITY_PATH).write_text(f'{{"format": 99, "landing": "{"5b" * 16}"}}')
    with pytest.raises(LogUnreadable, match="format 99"):
        opened(tmp_path, registry)


def test_log_when_an_entry_is_gone_and_later_ones_are_there_then_nothing_is_written_in_its_place(
    registry: SqlRegistry, tmp_path: Path
) -> None:
    log = opened(tmp_path / "a", MemoryRegistry())
    for number in range(1, 5):
        log.append([cut(number, file("orders"))], 7)
    (tmp_path / "a" / entry_path(3)).unlink()
    with pytest.raises(LogUnreadable, match=r"entry 3.*entry 4 is there"):
        opened(tmp_path / "a", registry)


def test_files_of_a_table_when_they_land_then_each_names_the_cut_before_it_that_has_some(
    registry: SqlRegistry, tmp_path: Path
) -> None:
    """Over the stream's and the gateway's end, and through a replay of the log."""
    memory = MemoryRegistry()
    memory.want("acme", "shop", "orders", "items", oldest=True)

    async def scenario(first: int, *tables_of_cuts: tuple[str, ...]) -> None:
        async with running_gateway(tmp_path, memory) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            for number, tables in enumerate(tables_of_cuts, first):
                for place, table in enumerate(tables):
                    rows = rows_batch(range(number * 10 + place * 2 - 9, number * 10 + place * 2 - 7))
                    await stream.send_batch(change_batch(run, number, table, rows))
                await stream.send(cut_end=cut_end(run, number, number * 10))
                assert (await stream.expect("cut_committed")).cut == number

    asyncio.run(scenario(1, ("orders",), (), ("orders", "items")))
    asyncio.run(scenario(4, ("items",), ("orders",)))
    found = [
        (landed.cut, each.table, each.previous_cut)
        for logged in read_log(tmp_path)
        for landed in logged.cuts
        for each in landed.files
    ]
    assert found == [(1, "orders", 0), (3, "orders", 1), (3, "items", 0), (4, "items", 3), (5, "orders", 3)]
    for logged in read_log(tmp_path):
        registry.apply_entry("replayed", logged)
    assert registry.last_cuts(SourceKey("acme", "shop")) == {("shop", "orders"): 5, ("shop", "items"): 4}
    registry.apply_entry("replayed", entry(6, cut(6, start=[started("orders", 0)])))
    assert registry.last_cuts(SourceKey("acme", "shop"))["shop", "orders"] == 5
