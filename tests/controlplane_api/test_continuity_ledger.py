"""What a table's ledger tells of the log and of commands, and that what was altered by hand is seen."""

from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest
from menura.landing import LandedStart, LandedStop
from sqlalchemy import delete, select, update

from controlplane_api.database import Database
from controlplane_api.models import LedgerEntry, LedgerHead, SourceTable
from controlplane_api.registry.sql_registry import SqlRegistry
from tests.controlplane_api import facts
from tests.controlplane_api.commands import menura
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import LANDING, T0, UUID, at, cut, entry
from tests.controlplane_api.lake_facts import Sink
from tests.controlplane_api.verdict_facts import verdict
from tests.stack import http_client

SOURCE = "/api/v1/tenants/acme/sources/shop"
TABLE = f"{SOURCE}/tables/shop/orders"


@pytest.fixture
def client(database: Database) -> Iterator[httpx.Client]:
    with serving(database) as url, http_client(url) as client:
        yield client


@pytest.fixture
def shop(client: httpx.Client, registry: SqlRegistry) -> httpx.Client:
    """Orders has begun, has lost a part of its log, was dumped, and has stopped; items has begun alone."""
    facts.record_shop(registry)
    named = [{"database": "shop", "table": name} for name in ("orders", "items")]
    client.post(f"{SOURCE}/start", json={"tables": named, "start": "oldest"}).raise_for_status()
    started = [LandedStart("shop", name, at(1), "began late") for name in ("orders", "items")]
    gap = facts.event("orders", 15, "LOG_GAP")
    gap = replace(gap, gap_from=f"{UUID}:1-2", gap_to=f"{UUID}:1-9", unlogged_changes="purged")
    dump = [facts.dump_event("orders", 25, "DUMP_STARTED", "d1"), facts.dump_event("orders", 27, "DUMPED", "d1", 25)]
    unlogged = replace(facts.event("orders", 28, "ALTERED"), unlogged_changes="values were converted")
    stop = LandedStop("shop", "orders", at(4), "TABLE_UNREADABLE", "a row can't be read")
    cuts = [
        replace(cut(1), started=tuple(started)),
        cut(2, events=[gap, facts.event("orders", 16, "TRUNCATED")]),
        cut(3, events=[*dump, unlogged]),
        replace(cut(4), stopped=(stop,)),
    ]
    for number, one in enumerate(cuts, 1):
        registry.apply_entry(LANDING, entry(number, one))
        registry.apply_entry(LANDING, entry(number, one))  # as after a restart
    return client


def ledger(client: httpx.Client, table: str = TABLE) -> list[tuple[str, str, str, str, str]]:
    """Kind, positions, dump, detail, the oldest first."""
    entries = client.get(f"{table}/ledger").raise_for_status().json()["entries"]
    assert [each["number"] for each in entries] == list(range(len(entries), 0, -1))
    names = ("kind", "from_position", "to_position", "dump", "detail")
    return [tuple(each[name] for name in names) for each in reversed(entries)]


def test_ledger_when_the_log_tells_of_a_table_then_each_is_there_once_with_its_positions(shop: httpx.Client):
    assert ledger(shop) == [
        ("COMMAND", "", "", "", "start"),
        ("STARTED", "", at(1).text, "", "began late"),
        ("GAP", f"{UUID}:1-2", f"{UUID}:1-9", "", "purged"),
        ("DUMP_STARTED", "", f"{UUID}:25", "d1", ""),
        ("DUMPED", "", f"{UUID}:27", "d1", ""),
        ("ROWS_UNLOGGED", "", f"{UUID}:28", "", "values were converted"),
        ("STOPPED", "", at(4).text, "", "TABLE_UNREADABLE: a row can't be read"),
    ]
    assert ledger(shop, f"{SOURCE}/tables/shop/notes") == []
    first = shop.get(f"{TABLE}/ledger", params={"limit": 4}).json()
    rest = shop.get(f"{TABLE}/ledger", params={"cursor": first["next_cursor"]}).json()
    assert [each["number"] for each in first["entries"] + rest["entries"]] == [7, 6, 5, 4, 3, 2, 1]
    assert shop.get(f"{SOURCE}/tables/shop/nowhere/ledger").status_code == 404


def test_ledger_when_somebody_orders_something_then_it_has_who_and_where_the_table_was(shop: httpx.Client):
    before = len(ledger(shop))
    assert shop.post(f"{TABLE}/resync", json={}, params={"dry_run": True}).status_code == 200
    assert len(ledger(shop)) == before
    shop.post(f"{TABLE}/start", json={"start": "resume"}).raise_for_status()
    shop.post(f"{TABLE}/start", json={"start": "resume"})  # runs already
    shop.post(f"{SOURCE}/stop", json={"tables": "all"}).raise_for_status()
    entries = shop.get(f"{TABLE}/ledger").json()["entries"]
    told = [(each["kind"], each["detail"], each["to_position"]) for each in reversed(entries[:-before])]
    assert told[0] == ("COMMAND", "start", at(4).text)
    assert [detail for _, detail, _ in told] == ["start", "stop"]
    assert all(each["actor"] for each in entries[:-before])
    assert entries[0]["at_us"] > T0


def test_ledger_when_a_lake_was_compared_with_the_table_then_it_has_what_was_found_once(
    shop: httpx.Client, database: Database
):
    before, sink = len(ledger(shop)), Sink()
    sink.tell(database, verdicts=(verdict(1), verdict(2, "differs"), verdict(1, table="unheard_of")))
    sink.tell(database, base=0, verdicts=(verdict(1), verdict(2, "differs")))
    assert ledger(shop)[before:] == [
        ("VERIFIED", "", "gtid:1-1", "orders-1", f"equal in lake {sink.lake}, 40000 rows"),
        ("VERIFIED", "", "gtid:1-2", "orders-2", f"differs in lake {sink.lake}, 40000 rows: rows differ"),
    ]
    assert shop.get(f"{TABLE}/ledger/check").json()["broken_at"] is None


@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize("harm", ["altered", "removed", "cut off", "all gone", "another table's"])
def test_check_when_the_database_was_altered_by_hand_then_says_where(shop: httpx.Client, database: Database, harm: str):
    whole = shop.get(f"{TABLE}/ledger/check").json()
    assert (whole["entries"], whole["broken_at"], whole["has_head_at"]) == (7, None, None)
    noted = shop.get(f"{TABLE}/ledger").json()["entries"][3]["hash"]
    assert shop.get(f"{TABLE}/ledger/check", params={"head": noted}).json()["has_head_at"] == 4
    with database.write() as connection:
        names = (SourceTable.name == "orders", SourceTable.name == "items")
        orders, items = (connection.execute(select(SourceTable.id).where(name)).scalar_one() for name in names)
        of_orders = LedgerEntry.table_id == orders
        match harm:
            case "altered":
                connection.execute(update(LedgerEntry).where(of_orders, LedgerEntry.number == 2).values(detail=""))
            case "removed":
                connection.execute(delete(LedgerEntry).where(of_orders, LedgerEntry.number == 2))
            case "cut off":
                connection.execute(delete(LedgerEntry).where(of_orders, LedgerEntry.number == 7))
            case "all gone":
                connection.execute(delete(LedgerEntry).where(of_orders))
            case "another table's":
                connection.execute(delete(LedgerEntry).where(of_orders))
                connection.execute(delete(LedgerHead).where(LedgerHead.table_id == orders))
                connection.execute(update(LedgerEntry).where(LedgerEntry.table_id == items).values(table_id=orders))
                connection.execute(update(LedgerHead).where(LedgerHead.table_id == items).values(table_id=orders))
    broken_at = {"altered": 2, "removed": 2, "cut off": 7, "all gone": 1, "another table's": 1}[harm]
    assert shop.get(f"{TABLE}/ledger/check").json()["broken_at"] == broken_at


def test_command_when_it_shows_and_verifies_a_ledger_then_says_so_and_ends_with_its_code_where_it_is_broken(
    shop: httpx.Client, database: Database
):
    here = ("--api", str(shop.base_url).rstrip("/"), "--tenant", "acme")
    shown = menura("ledger", "shop", "shop.orders", "--verify", *here)
    for words in ("GAP", f"from {UUID}:1-2", "purged", "dump d1", "TABLE_UNREADABLE", "7 entries are as they were"):
        assert words in shown.stdout, shown
    head = shop.get(f"{TABLE}/ledger/check").json()["head"]
    assert head in shown.stdout
    assert menura("ledger", "shop", "shop.orders", "--verify", "--head", head, *here).returncode == 0
    other = menura("ledger", "shop", "shop.orders", "--verify", "--head", "0" * 64, *here)
    assert (other.returncode, "no entry has the hash" in other.stderr) == (44, True)
    with database.write() as connection:
        connection.execute(update(LedgerEntry).where(LedgerEntry.kind == "GAP").values(kind="DUMPED"))
    broken = menura("ledger", "shop", "shop.orders", "--verify", *here)
    assert (broken.returncode, "entry 3 is missing or is not as it was written" in broken.stderr) == (44, True)


def test_ledger_when_the_database_was_lost_then_the_log_s_part_is_there_and_says_that_commands_are_not(
    client: httpx.Client, registry: SqlRegistry
):
    registry.apply_entry(LANDING, entry(1, replace(cut(1), started=(LandedStart("shop", "orders", at(1), ""),))))
    assert [kind for kind, *_ in ledger(client)] == ["HISTORY_LOST", "STARTED"]
