"""Rollouts over random histories, beside a plain model: the same states after each step, and what must never be.

The model knows no SQL and no locks: dictionaries, and the rules of docs/fleet.md in their order.
"""

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import select

from controlplane_api import rollout_turns, rollouts
from controlplane_api.database import Database, open_database
from controlplane_api.errors import RolloutUnknown
from controlplane_api.models import Rollout
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.rollouts import Group
from tests.controlplane_api.upgrade_facts import (
    NEW,
    OLD,
    add_release,
    connect,
    generations,
    order,
    seen,
    states,
    tenant_id,
)

SECOND = 1_000_000
NAMES = [f"{group}{n}" for group in "abc" for n in range(3)]
WAIT, WITHIN, AT_ONCE = 6 * SECOND, 60 * SECOND, 2
WORK = ("offered", "downloading", "installing")


@dataclass
class Member:
    group: int
    connected: bool = True
    runs: str = OLD
    state: str = "waiting"
    generation: int = 0
    since: int = 0
    skipped: bool = False


@dataclass
class Model:
    most_failures: int
    members: dict[str, Member] = field(default_factory=lambda: {name: Member("abc".index(name[0])) for name in NAMES})
    state: str = "running"
    group: int = 0
    clock: int = 0
    whole: int | None = None
    looked: int = 1_000 * SECOND

    def turn(self, at: int) -> None:
        if self.state not in ("running", "paused", "halted", "cancelling"):
            return
        rests = self.state in ("paused", "halted") and not self.count(*WORK)
        if at - (60 if rests else 2) * SECOND < self.looked <= at + 2 * SECOND:
            return
        self.clock += max(0, min(at - self.looked, 10 * SECOND))
        self.looked = at
        for one in self.members.values():
            if one.state in WORK and one.since <= self.clock - WITHIN:
                one.state = "failed"
        self.judge()
        for one in self.members.values():
            if one.state == "waiting" and one.group <= self.group and one.runs == NEW:
                one.state, one.since = "done", self.clock
        work = self.count(*WORK)
        if self.state == "cancelling" and not work and self.clock - (self.whole or 0) >= 60 * SECOND:
            self.state = "cancelled"
        if self.state == "running":
            self.go_on(work)

    def go_on(self, work: int) -> None:
        # names are in the order of ids, and groups in that of names
        ready = [m for m in self.members.values() if m.state == "waiting" and m.group <= self.group and m.connected]
        offered = ready[: max(0, AT_ONCE - work)]
        for one in offered:
            one.state, one.generation, one.since = "offered", one.generation + 1, self.clock
        if offered or work:
            self.whole = None
            return
        of_group = [m for m in self.members.values() if m.group == self.group and not m.skipped]
        done = [m for m in of_group if m.state == "done"]
        is_held = any(m.state == "waiting" for m in of_group)
        is_whole = not is_held and bool(done or not of_group)
        if not is_held and self.group == 2:
            self.state = "done"
        elif not is_whole or any(not m.connected or m.runs != NEW for m in done):
            self.whole = None
        elif self.whole is None and of_group:
            self.whole = self.clock
        elif not of_group or self.clock - (self.whole or 0) >= WAIT:
            self.group, self.whole = self.group + 1, None

    def judge(self) -> None:
        failed = sum(one.state == "failed" and not one.skipped for one in self.members.values())
        if self.state in ("running", "paused") and failed > self.most_failures:
            self.state, self.whole = "halted", None
            self.withdraw()

    def withdraw(self) -> None:
        for one in self.members.values():
            if one.state == "offered":
                one.state = "waiting"

    def say(self, name: str, word: str, version: str) -> None:
        one = self.members[name]
        one.runs = version
        if self.state not in ("running", "paused", "halted", "cancelling") or one.state == "done" or not one.generation:
            return
        order = ["waiting", *WORK]
        if word == "RUNNING":
            if version == NEW:
                one.state, one.since = "done", self.clock
        elif word in ("ROLLED_BACK", "REFUSED"):
            one.state, one.since = "failed", self.clock
            self.judge()
        elif one.state in order and order.index(one.state) < order.index(word.lower()):
            one.state, one.since = word.lower(), self.clock

    def command(self, word: str) -> bool:
        """False: it is refused."""
        if self.state not in ("running", "paused", "halted"):
            return False
        if word == "pause" and self.state == "running":
            self.state, self.whole = "paused", None
            self.withdraw()
        if word == "resume" and self.state != "running":
            self.state, self.whole = "running", None
            for one in self.members.values():
                if one.state == "failed" and not one.skipped:
                    one.state = "waiting"
        if word == "cancel":
            self.state, self.whole = "cancelling", self.clock
            self.withdraw()
        return True

    def count(self, *among: str) -> int:
        return sum(one.state in among for one in self.members.values())


def command(database: Database, word: str) -> bool:
    act = {"pause": rollouts.pause, "resume": rollouts.resume, "cancel": rollouts.cancel}[word]
    try:
        with database.write() as connection:
            act(connection, tenant_id(connection, "acme"))
    except RolloutUnknown:
        return False
    return True


@pytest.mark.history
@pytest.mark.parametrize("seed", range(12))
def test_rollout_when_anything_happens_in_any_order_then_it_is_as_the_model_and_never_beyond_its_bounds(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_turns, "now_of", lambda _, at_us: at_us)
    chance, at_us = random.Random(seed), 1_000 * SECOND
    database = open_database(f"sqlite:///{tmp_path}/control.db")
    gateways = [SqlRegistry(database), SqlRegistry(database)]
    for version in (OLD, NEW):
        add_release(database, "acme", version)
    connect(gateways[0], "acme", *NAMES)
    model = Model(chance.randrange(3))
    wanted = order(
        *(Group(name, (f"{name}*",)) for name in "abc"),
        wait_us=WAIT, at_once=AT_ONCE, most_failures=model.most_failures, return_us=WITHIN,
    )  # fmt: skip
    with database.write() as connection:
        rollout = rollouts.start(connection, tenant_id(connection, "acme"), wanted, "admin", at_us)
    for _ in range(250):
        name, registry = chance.choice(NAMES), chance.choice(gateways)
        what = chance.choices(["turn", "say", "gone", "come", "command", "skip"], [10, 10, 1, 3, 0.6, 0.2])[0]
        if what == "turn":
            at_us += chance.choice([2, 2, 2, 7, 4_000, -5_000]) * SECOND
            registry.move_rollouts(at_us)
            gateways[0].move_rollouts(at_us)  # the other one looks at the same moment: nothing is done twice
            model.turn(at_us)
        elif what == "say":
            word = chance.choice(
                ["DOWNLOADING", "INSTALLING", "RUNNING", "RUNNING", "RUNNING", "ROLLED_BACK", "REFUSED"]
            )
            has_order = model.members[name].generation > 0
            version = chance.choice([NEW, NEW, OLD]) if word == "RUNNING" and has_order else model.members[name].runs
            if version == NEW and word in ("ROLLED_BACK", "REFUSED"):
                continue
            said = seen(version, word, generations(database, rollout)[name], session=f"session-{name}")
            registry.record_version(("acme", name), said, at_us)
            model.say(name, word, version)
        elif what == "gone":
            registry.record_agent_gone("acme", name, f"session-{name}", at_us)
            model.members[name].connected = False
        elif what == "come":
            connect(registry, "acme", name, version=None)
            model.members[name].connected = True
        elif what == "command":
            word = chance.choice(
                ["pause", "resume", "resume", "resume", "cancel"] if chance.random() < 0.3 else ["resume"]
            )
            assert command(database, word) == model.command(word)
        elif model.state in ("running", "paused", "halted"):
            with database.write() as connection:
                rollouts.skip(connection, tenant_id(connection, "acme"), name)
            model.members[name].skipped = True
        with database.read() as connection:
            row = connection.execute(select(Rollout).where(Rollout.id == rollout)).one()
        found = states(database, rollout)
        assert (row.state, row.group_number, row.clock_us) == (model.state, model.group, model.clock)
        assert found == {name: one.state for name, one in model.members.items()}
        assert all(found[name] == "waiting" for name in NAMES if "abc".index(name[0]) > row.group_number)
        if row.state == "halted":
            assert "offered" not in found.values()
    database.close()
