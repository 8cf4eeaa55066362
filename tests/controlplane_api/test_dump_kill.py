"""The API killed while it takes commands about dumps: each is done whole or not begun, and what was answered stays."""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from sqlalchemy import select

from controlplane_api.database import Database
from controlplane_api.models import Dump, Source, SourceTable, Sync
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.states import StartKind
from controlplane_api.syncs import Start, start_tables
from tests.controlplane_api import facts
from tests.controlplane_api.facts import LANDING, cut, entry, started
from tests.servers import free_port
from tests.stack import Process, http_client, wait_for

KILLS = 4
TABLES = ("items", "notes", "orders")
DUMPS = "/api/v1/tenants/acme/sources/shop/dumps"
CANCELLED = "the dump that should have brought them was cancelled"


@dataclass(frozen=True)
class Asked:
    """All that commands about dumps write."""

    generation: int
    #: table, state, whether it is paused, priority; in the order in which they began
    dumps: tuple[tuple[str, str, bool, int], ...]
    #: by table
    missing: tuple[tuple[str, str], ...]

    def begun(self, names: tuple[str, ...]) -> "Asked":
        new = tuple((name, "running", False, 0) for name in names)
        return replace(self, generation=self.generation + 1, dumps=self.dumps + new)

    def changed(self, place: int, state: str, *, paused: bool, priority: int) -> "Asked":
        dumps, missing = list(self.dumps), dict(self.missing)
        table = dumps[place][0]
        dumps[place] = (table, state, paused, priority)
        if state == "cancelled":
            missing[table] = CANCELLED
        return Asked(self.generation + 1, tuple(dumps), tuple(missing.items()))


@dataclass(frozen=True)
class Command:
    path: str
    body: dict[str, object]
    after: Asked


def asked(database: Database) -> tuple[Asked, list[str]]:
    """What the database says, and the dumps' UUIDs."""
    with database.read() as connection:
        generation = connection.execute(select(Source.dump_generation)).scalar_one()
        dumps = connection.execute(
            select(SourceTable.name, Dump.state, Dump.paused, Dump.priority, Dump.uuid)
            .join(SourceTable, SourceTable.id == Dump.table_id)
            .order_by(Dump.id)
        ).all()
        missing = connection.execute(
            select(SourceTable.name, Sync.earlier_rows_missing).join_from(Sync, SourceTable).order_by(SourceTable.name)
        ).all()
    rows = tuple((row.name, row.state, row.paused, row.priority) for row in dumps)
    return Asked(generation, rows, tuple((row.name, row.earlier_rows_missing) for row in missing)), [
        row.uuid for row in dumps
    ]


def next_command(now: Asked, uuids: list[str], chance: random.Random) -> Command:
    running = [place for place, dump in enumerate(now.dumps) if dump[1] == "running"]
    at_rest = tuple(name for name in TABLES if name not in {now.dumps[place][0] for place in running})
    if len(at_rest) > 1:
        return Command(DUMPS, {"tables": "all"}, now.begun(at_rest))
    place = chance.choice(running)
    _, state, paused, priority = now.dumps[place]
    path = f"{DUMPS}/{uuids[place]}"
    match chance.randrange(3):
        case 0:
            return Command(
                f"{path}/{'resume' if paused else 'pause'}",
                {},
                now.changed(place, state, paused=not paused, priority=priority),
            )
        case 1:
            other = priority + 1
            after = now.changed(place, state, paused=paused, priority=other)
            return Command(f"{path}/priority", {"priority": other}, after)
        case _:
            return Command(f"{path}/cancel", {}, now.changed(place, "cancelled", paused=paused, priority=priority))


def command_until_killed(
    url: str, database: Database, kill: Callable[[], None], chance: random.Random
) -> tuple[int, Asked, Asked]:
    """How many commands were answered; what is asked then, and what it is if the unanswered one was done too."""
    (now, uuids), answered = asked(database), 0
    first, killer = chance.randrange(3, 12), threading.Timer(chance.uniform(0, 0.02), kill)
    with http_client(url) as client:
        while True:
            if answered == first:
                killer.start()
            command = next_command(now, uuids, chance)
            try:
                client.post(command.path, json=command.body).raise_for_status()
            except httpx.TransportError:
                killer.join()
                return answered, now, command.after
            now, uuids = asked(database)
            assert now == command.after, command
            answered += 1


@pytest.mark.kill
@pytest.mark.parametrize("kind", ["sqlite"])
def test_api_killed_while_it_takes_commands_about_dumps_when_it_is_back_then_each_was_done_or_not_begun(
    database: Database, database_url: str, registry: SqlRegistry, tmp_path: Path
):
    facts.record_shop(registry, *TABLES)
    with database.write() as connection:
        source_id = connection.execute(select(Source.id)).scalar_one()
        start_tables(connection, source_id, None, Start(StartKind.OLDEST))
    registry.apply_entry(LANDING, entry(1, cut(1, start=[started(name, 0, "purged") for name in TABLES])))
    chance, address, answered = random.Random(7), f"127.0.0.1:{free_port()}", 0
    api = Process(["api", "run", "--database", database_url, "--listen", address, "--anonymous"], tmp_path / "api.log")
    try:
        for _ in range(KILLS):
            api.start()
            wait_for("the API to listen", lambda: listens(address) or not api.is_running(), every=0.05)
            assert api.is_running(), api.tail()
            more, before, after = command_until_killed(f"http://{address}", database, api.kill, chance)
            answered += more
            assert asked(database)[0] in (before, after)
    finally:
        if api.is_running():
            api.stop()
    assert answered >= 3 * KILLS


def listens(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/healthz").is_success
    except httpx.TransportError:
        return False
