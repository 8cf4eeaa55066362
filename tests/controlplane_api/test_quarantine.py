"""Cuts that are committed and that the database refuses: their source alone is held, is seen, and is let go again."""

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from menura.landing import LandedCut, encode_entry, entry_path
from menura.stores.local import LocalStore
from sqlalchemy import select

from controlplane_api.database import Database, open_database
from controlplane_api.models import Quarantine, Source
from controlplane_api.registry import cut_log
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.states import StartKind
from controlplane_api.syncs import Start, start_tables
from gateway.landing.cut_log import CutLog
from gateway.registry import GatewayRun, Held, HeldBack, RegistryRefused, RegistryUnavailable, SourceKey
from tests.controlplane_api import facts
from tests.controlplane_api.commands import menura
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import KEY, LANDING, chunk, cut, entry, event, file, started
from tests.gateway.harness import data_files, read_log, running_gateway
from tests.gateway.scripted_agent import change_batch, commit_cut, cut_end, rows_batch, scripted_agent
from tests.stack import http_client

OTHER = SourceKey("globex", "shop")
TOO_LARGE = 2**63


def want_orders(database: Database, *keys: SourceKey) -> None:
    for key in keys:
        facts.record_shop(SqlRegistry(database), "orders", "items", key=key)
        with database.write() as connection:
            ids = connection.execute(select(Source.id).order_by(Source.id.desc())).scalars().first()
            assert ids is not None
            start_tables(connection, ids, [("shop", "orders")], Start(StartKind.OLDEST))


def poison(number: int = 1, **changes: Any) -> LandedCut:
    """No gateway writes this any more: an event with a number that SQL does not have."""
    made = cut(number, file("orders"), start=[started("orders", 0)], events=[event("orders", TOO_LARGE)])
    return replace(made, **changes)


def quarantined(database: Database) -> list[tuple[int, int, int, int]]:
    with database.read() as connection:
        columns = (Quarantine.entry, Quarantine.cut, Quarantine.last_entry, Quarantine.last_cut)
        return [tuple(row) for row in connection.execute(select(*columns))]


def test_entry_when_a_source_of_it_is_refused_then_the_others_move_and_it_is_held(
    registry: SqlRegistry, database: Database
) -> None:
    want_orders(database, KEY, OTHER)
    honest = cut(1, file("orders"), key=OTHER, start=[started("orders", 0)])
    assert registry.apply_entry(LANDING, entry(1, poison(), cut(2), honest)).quarantined == {KEY}
    assert (registry.applied_entry(LANDING), registry.committed(OTHER).cut) == (1, 1)
    held = registry.committed(KEY)
    assert (held.cut, held.quarantine is not None) == (0, True)
    assert held.quarantine is not None and "cut 1, which is committed in entry 1" in held.quarantine.message
    assert registry.apply_entry(LANDING, entry(2, cut(3), cut(2, key=OTHER))).quarantined == {KEY}
    assert registry.apply_entry(LANDING, entry(2, cut(3), cut(2, key=OTHER))).quarantined == {KEY}
    assert (registry.committed(KEY).cut, registry.committed(OTHER).cut) == (0, 2)
    assert quarantined(database) == [(1, 1, 2, 3)]
    assert registry.held(LANDING, asked=False) == [Held(KEY, 1, 2)]
    assert registry.held(LANDING, asked=True) == []


def test_entry_when_a_thousand_sources_are_in_it_then_it_is_applied(registry: SqlRegistry) -> None:
    """SQLite takes no expression of a thousand parts."""
    keys = [SourceKey("acme", f"s{number}") for number in range(1_100)]
    assert registry.apply_entry(LANDING, entry(1, *(cut(1, key=key) for key in keys))) == HeldBack()


def test_sums_of_a_dump_when_they_pass_what_sql_keeps_then_they_stay_at_its_greatest_number(
    registry: SqlRegistry, database: Database
) -> None:
    """As a gateway let it into the log that did not bound them."""
    want_orders(database, KEY)
    large = [replace(chunk("orders", "d", n, "", f'["{n}"]'), source_bytes=2**63 - 1, chunk=2**63 - 1) for n in (1, 2)]
    assert registry.apply_entry(LANDING, entry(1, cut(1, chunks=large[:1]))) == HeldBack()
    again = replace(large[1], lower='["1"]')
    assert registry.apply_entry(LANDING, entry(2, cut(2, chunks=[again]))) == HeldBack()
    assert registry.committed(KEY).cut == 2


def test_held_cuts_when_a_newer_version_can_apply_them_then_the_quarantine_ends(
    registry: SqlRegistry, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want_orders(database, KEY)
    log = CutLog(LocalStore(tmp_path), LANDING, "gw-1")
    apply_cut = cut_log.apply_cut

    def defective(source: Any, landed: LandedCut, *others: Any) -> None:
        if landed.cut == 2:
            raise KeyError("what nobody thought of")
        apply_cut(source, landed, *others)

    with monkeypatch.context() as patch:
        patch.setattr(cut_log, "apply_cut", defective)
        for number in (1, 2, 3):
            made = log.append(
                [cut(number, file("orders"), start=[started("orders", 0)] if number == 1 else [])], number
            )
            registry.apply_entry(LANDING, made)
        (held,) = registry.held(LANDING, asked=False)
        assert (held.entry, held.last_entry, registry.committed(KEY).cut) == (2, 3, 1)
        assert not log.reapply(registry, held)
    assert log.reapply(registry, held)
    assert (registry.committed(KEY).cut, registry.committed(KEY).quarantine) == (3, None)
    assert quarantined(database) == []


def test_statement_when_it_fails_then_what_repeating_does_not_help_is_told_apart(
    registry: SqlRegistry, database: Database
) -> None:
    facts.record_shop(registry)
    with pytest.raises(RegistryRefused):
        registry.begin_gateway(GatewayRun("gw-1", "run"), 1e30)  # beyond SQL's integers
    with database.write() as connection:
        connection.exec_driver_sql("DROP TABLE lease")
    with pytest.raises(RegistryUnavailable):
        registry.assign_source(KEY, GatewayRun("gw-1", "run"), "session")


def test_gateway_when_a_poisonous_entry_is_in_its_log_then_it_serves_the_others_and_operators_see_and_end_it(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    want_orders(database, KEY, OTHER)
    path = tmp_path / entry_path(1)
    path.parent.mkdir(parents=True)
    path.write_bytes(encode_entry(entry(1, poison())))

    async def scenario(url: str) -> None:
        http, here = http_client(url), {"MENURA_API": url, "MENURA_TENANT": "acme"}
        run_command = lambda *words: asyncio.to_thread(menura, *words, **here)  # noqa: E731
        shop = "/api/v1/tenants/acme/sources/shop"
        async with (
            running_gateway(tmp_path, SqlRegistry(database)) as address,
            scripted_agent(address, "shop", tenant="globex") as honest,
            scripted_agent(address, "shop") as held,
        ):
            stream, run = await honest.open_binlog("shop")
            assert await commit_cut(stream, run, 1, [1]) == 2
            stream = await held.open("MySQLBinlog", "shop")
            assert (await stream.expect_error()).code == "SOURCE_QUARANTINED"

            source = (await asyncio.to_thread(http.get, shop)).json()
            assert (source["stage"], source["stage_problem"]["code"]) == ("gateway", "SOURCE_QUARANTINED")
            table = (await asyncio.to_thread(http.get, f"{shop}/tables/shop/orders")).json()
            assert (table["state"], table["stage"]) == ("failed", "gateway")
            shown = await run_command("sources", "quarantine", "shop")
            assert "cuts 1 to 1, entries 1 to 1; 1 tables" in shown.stdout, shown

            asked = await run_command("sources", "quarantine", "shop", "--retry")
            assert "applies them again" in asked.stdout, asked

            def is_asked() -> bool:
                return bool(http.get(f"{shop}/quarantine").json()["retries"])

            while await asyncio.to_thread(is_asked):  # the gateway has tried, and was refused again
                await asyncio.sleep(0.05)
            skipped = await run_command("sources", "quarantine", "shop", "--skip")
            assert "shop.orders: begins anew" in skipped.stdout, skipped
            answer = await asyncio.to_thread(http.get, f"{shop}/quarantine")
            assert (answer.status_code, answer.json()["code"]) == (404, "SOURCE_NOT_QUARANTINED")
            stream, run = await held.open_binlog("shop")
            assert (run.next_cut, run.next_gsn) == (2, 11)
            assert run.tables[0].dump
            await commit_cut(stream, run, 2, [11])

    with closing(open_database(database_url)) as of_api, serving(of_api) as url:
        asyncio.run(scenario(url))
    assert [cut.cut for entry in read_log(tmp_path) for cut in entry.cuts if cut.tenant == "acme"] == [1, 2]


def test_commit_when_the_database_refuses_one_sources_cut_then_its_stream_ends_and_the_other_goes_on(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want_orders(database, KEY, OTHER)
    apply_cut = cut_log.apply_cut

    def refusing(source: Any, landed: LandedCut, *others: Any) -> None:
        if landed.tenant == "acme":
            raise OverflowError("Python int too large to convert to SQLite INTEGER")
        apply_cut(source, landed, *others)

    monkeypatch.setattr(cut_log, "apply_cut", refusing)

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, SqlRegistry(database)) as address,
            scripted_agent(address, "shop", tenant="globex") as honest,
            scripted_agent(address, "shop") as bad,
        ):
            (healthy, run), (stream, theirs) = await honest.open_binlog("shop"), await bad.open_binlog("shop")
            await stream.send_batch(change_batch(theirs, 1, "orders", rows_batch([1])))
            await stream.send(cut_end=cut_end(theirs, 1, 1))
            assert (await stream.expect_error()).code == "SOURCE_QUARANTINED"
            for number in (1, 2):
                await commit_cut(healthy, run, number, [number])
            stream = await bad.open("MySQLBinlog", "shop")
            assert (await stream.expect_error()).code == "SOURCE_QUARANTINED"

    asyncio.run(scenario())
    named = {tmp_path / each.path for entry in read_log(tmp_path) for cut in entry.cuts for each in cut.files}
    assert named == set(data_files(tmp_path))  # what the log names is still there


def test_quarantine_when_the_position_can_not_be_counted_on_from_then_the_stream_says_so(
    database: Database, tmp_path: Path
) -> None:
    """Cut 1 was committed by a gateway that let an agent say so."""
    want_orders(database, KEY)
    path = tmp_path / entry_path(1)
    path.parent.mkdir(parents=True)
    path.write_bytes(encode_entry(entry(1, replace(cut(1), last_gsn=2**63 - 1))))

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, SqlRegistry(database)) as address,
            scripted_agent(address, "shop") as agent,
        ):
            stream = await agent.open("MySQLBinlog", "shop")
            assert (await stream.expect_error()).code == "NUMBERS_SPENT"

    asyncio.run(scenario())
