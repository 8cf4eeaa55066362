"""What the control plane's messages say is to be done: each command is run as it stands, and is not refused."""

import re
import shlex
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import update

from agent.snapshot.failures import unrepairable
from controlplane_api.database import Database
from controlplane_api.models import Dump, Sync
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.landing.committer import quarantined
from gateway.registry import DumpPlanned, KeyRange, OtherServerSeen, Problem
from tests.controlplane_api import facts
from tests.controlplane_api.commands import Done, menura
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import KEY, LANDING, T0, cut, entry, started
from tests.controlplane_api.lake_facts import Sink
from tests.controlplane_api.test_dump_api import read_some
from tests.controlplane_api.verdict_facts import verdict
from tests.stack import http_client

_COMMAND = re.compile(r"menura ((?:sync|dump|sources|lakes)\b(?!:)(?: (?!for\b|shows\b|and\b)[\w.'`-]+)*)")
ORDERS = ("shop", "shop.orders")
BROKEN = Problem("DUMP_TABLE_GONE", "The table was renamed.", True, T0)


class Client:
    """Commands of an operator, against an API of its own."""

    def __init__(self, url: str, database: Database) -> None:
        self.here = {"MENURA_API": url, "MENURA_TENANT": "acme"}
        self.database = database
        self.http = http_client(url)

    def run(self, *words: str) -> Done:
        return menura(*words, **self.here)

    def takes(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, (words, done)
        return done.stdout

    def refused(self, *words: str) -> str:
        """What the command says; it must be refused."""
        done = self.run(*words)
        assert done.returncode, done
        return done.stdout + done.stderr

    def obeys(self, message: str, *expected: str) -> None:
        """Runs all that the message names, word for word."""
        found = [words.rstrip(".") for words in _COMMAND.findall(message)]
        assert found == list(expected), message
        for words in found:
            self.takes(*shlex.split(words))

    def dump(self) -> str:
        """UUID of the newest one."""
        dumps = self.http.get("/api/v1/tenants/acme/sources/shop/dumps").json()["dumps"]
        return str(max(dumps, key=lambda each: each["created_at_us"])["dump"])


@pytest.fixture
def client(database: Database, registry: SqlRegistry) -> Iterator[Client]:
    """shop.orders streams."""
    facts.record_shop(registry)
    with serving(database) as url:
        found = Client(url, database)
        found.takes("sync", "start", *ORDERS)
        registry.apply_entry(LANDING, entry(1, cut(1, start=[started("orders", 0, "purged")])))
        yield found
        found.http.close()


def test_sync_when_a_command_is_refused_then_what_it_says_instead_is_taken(client: Client) -> None:
    client.obeys(client.refused("sync", "retry", "shop", "shop.items"), "sync start shop shop.items")
    client.obeys(client.refused("sync", "start", *ORDERS, "--from", "now"), "sync stop shop shop.orders")
    client.obeys(client.refused("dump", "start", *ORDERS), "sync start shop shop.orders --from dump")
    client.obeys(client.takes("sync", "start", "shop", "shop.notes", "--from", "dump"), "dump list")


def test_dump_when_a_command_is_refused_then_what_it_says_instead_is_taken(
    client: Client, registry: SqlRegistry
) -> None:
    client.takes("dump", "start", *ORDERS)
    first = client.dump()
    client.obeys(client.refused("dump", "start", *ORDERS), f"dump cancel {first}")
    client.obeys(client.refused("dump", "pause", first), "dump start shop shop.orders")
    client.obeys(client.refused("dump", "pause", "ffffffff"), "dump list --all")
    unknown = client.http.post("/api/v1/tenants/acme/sources/shop/dumps/nowhere/pause", json={}).json()
    client.obeys(unknown["remedy"], "dump list --all")
    shown = client.http.get("/api/v1/tenants/acme/sources/shop/dumps/nowhere").json()
    client.obeys(shown["remedy"], "dump list --all")
    second = client.dump()
    registry.record_dump_plan(KEY, second, DumpPlanned((), (), 10, 10, None, None, ""), T0)
    client.obeys(client.refused("dump", "pause", second), f"dump cancel {second}")
    client.takes("dump", "start", *ORDERS)
    third = client.dump()
    read_some(registry, third)
    registry.record_dump_failed(KEY, third, BROKEN, T0)
    client.takes("sync", "stop", *ORDERS)
    client.takes("sync", "start", *ORDERS)
    client.obeys(client.refused("dump", "resume", third), "dump start shop shop.orders")


def test_dump_when_the_log_is_not_kept_long_enough_then_both_commands_of_the_message_begin_it(
    client: Client, registry: SqlRegistry
) -> None:
    client.takes("dump", "start", *ORDERS)
    warning = "It may take 1 h; the server keeps its log for 60 s, and for longer with: SET LOG = 604800"
    registry.record_dump_plan(KEY, client.dump(), DumpPlanned((), (), 10, 10, 60, 3_600, warning), T0)
    (message,) = [
        each["problem"]["message"]
        for each in client.http.get("/api/v1/tenants/acme/sources/shop/dumps").json()["dumps"]
    ]
    assert f"{warning}. " in message
    plain, forced = _COMMAND.findall(message)
    assert (plain, forced.rstrip(".")) == ("dump start shop shop.orders", "dump start shop shop.orders --force")
    client.takes(*plain.split())
    client.takes("dump", "cancel", client.dump())
    client.takes(*forced.rstrip(".").split())


def test_lakes_when_one_is_unknown_or_silent_then_what_the_message_says_is_taken(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.obeys(client.refused("lakes", "--forget", "nowhere"), "lakes")
    Sink().tell(client.database, 0, T0, entry=1)
    (problem,) = [each["problem"] for each in client.http.get("/api/v1/lakes").json()["lakes"]]
    assert problem["code"] == "LAKE_SILENT"
    client.obeys(problem["message"], "lakes --forget main")
    monkeypatch.setattr("controlplane_api.lakes.MAX_LAKES", 1)
    Sink("first").tell(client.database, 0)
    with pytest.raises(Exception, match="menura lakes --forget NAME") as refused:
        Sink("second").tell(client.database, 0)
    ((words),) = _COMMAND.findall(str(refused.value))
    client.takes(*words.rstrip(".").replace("NAME", "first").split())
    Sink("second").tell(client.database, 0)


def test_acceptance_when_it_is_refused_then_what_it_says_instead_is_taken(
    client: Client, registry: SqlRegistry
) -> None:
    client.obeys(client.refused("sources", "accept", "shop"), "sources")
    offer: Callable[[str], None] = lambda identity: registry.record_effective(  # noqa: E731
        KEY, 1, [], Problem("SOURCE_REBUILT", "Another one.", True, T0), T0,
        OtherServerSeen(identity, "db2", "db1", "1-9", "1-1", "1-5", "1-5", "", None),
    )  # fmt: skip
    offer("first")
    path = "/api/v1/tenants/acme/sources/shop/other-server"
    shown = client.http.get(path).json()["identity"]
    offer("second")
    changed = client.http.post(f"{path}/accept", json={"identity": shown}).json()
    client.obeys(changed["remedy"], "sources accept shop")


def test_quarantine_when_it_begins_or_is_over_then_what_the_messages_say_is_taken(
    client: Client, registry: SqlRegistry
) -> None:
    client.obeys(client.refused("sources", "quarantine", "shop"), "sources")
    poison = facts.event("orders", 2**63)
    registry.apply_entry(LANDING, entry(2, cut(2, events=[poison])))
    client.obeys(str(quarantined(KEY, "cut 2")), "sources quarantine shop")
    shown = client.http.get("/api/v1/tenants/acme/sources/shop/quarantine").json()["problem"]["message"]
    client.obeys(shown, "sources quarantine shop --retry", "sources quarantine shop --skip")
    client.obeys(client.refused("sources", "quarantine", "shop"), "sources")


def test_table_when_its_policy_is_to_note_then_the_command_of_the_note_brings_its_rows(
    client: Client, registry: SqlRegistry
) -> None:
    rows = facts.unlogged("orders", 11, reread=False)
    registry.apply_entry(LANDING, entry(2, cut(2, events=[rows])))
    shown = " ".join(menura("tables", "shop", **client.here, COLUMNS="400").stdout.split())
    client.obeys(shown, "dump start shop shop.orders")
    dump = client.dump()
    plan = DumpPlanned(("id",), (KeyRange(0, "", ""),), 10, 500, None, None, "")
    registry.record_dump_plan(KEY, dump, plan, T0)
    registry.apply_entry(LANDING, entry(3, cut(3, events=[facts.dump_event("orders", 12, "DUMP_STARTED", dump)])))
    chunk, done = facts.chunk("orders", dump, 1, "", "", last=True), facts.dump_event("orders", 13, "DUMPED", dump, 12)
    registry.apply_entry(LANDING, entry(4, cut(4, events=[done], chunks=[chunk])))
    assert "no dump is ordered" not in client.takes("tables", "shop")


def test_repair_when_it_is_impossible_then_what_it_says_instead_is_taken(client: Client, database: Database) -> None:
    with database.write() as connection:
        connection.execute(update(Sync).values(earlier_rows_missing=""))
    assert "Run: menura verify run shop shop.orders" in client.refused("verify", "repair", *ORDERS)
    client.takes("verify", "run", *ORDERS)
    verification = client.dump()
    with database.write() as connection:
        connection.execute(update(Dump).where(Dump.uuid == verification).values(state="done"))
    Sink().tell(database, base=0, verdicts=(verdict(1, "differs", verification=verification),))
    client.obeys(client.refused("verify", "repair", *ORDERS), "sync resync shop shop.orders")
    agents = unrepairable("shop", ("shop", "orders"), "its key begins with text now")
    client.obeys(str(agents), "sync resync shop shop.orders")
