"""Rollouts: which agent has an order when, what halts them, and who waits for whom."""

from dataclasses import dataclass

import pytest
from sqlalchemy import event, select

from controlplane_api import agent_packages, rollout_turns, rollouts
from controlplane_api.database import Database
from controlplane_api.errors import PackageInvalid, ReleaseInUse, RequestInvalid, RolloutRuns, RolloutUnknown
from controlplane_api.models import AgentPackage, Rollout
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.rollout_rows import forms, holds, reason, with_agents
from controlplane_api.rollout_states import LEFT_OUT, Reason
from controlplane_api.rollouts import Group, Order
from gateway.registry import AgentSeen, Problem, VersionDesired
from tests.controlplane_api.upgrade_facts import (
    NEW,
    OLD,
    add_release,
    connect,
    generations,
    order,
    release_files,
    seen,
    states,
    tenant_id,
)

SECOND = 1_000_000


@dataclass
class Fleet:
    database: Database
    registry: SqlRegistry
    at_us: int = 1_000 * SECOND

    def start(self, wanted: Order, tenant: str = "acme") -> int:
        with self.database.write() as connection:
            return rollouts.start(connection, tenant_id(connection, tenant), wanted, "admin", self.at_us)

    def turn(self, seconds: int = 2) -> None:
        self.at_us += seconds * SECOND
        self.registry.move_rollouts(self.at_us)

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.turn()

    def say(self, rollout: int, agent: str, state: str, version: str = OLD, problem: Problem | None = None) -> None:
        generation = generations(self.database, rollout)[agent]
        said = seen(version, state, generation, problem=problem, session=f"session-{agent}")
        assert self.registry.record_version(("acme", agent), said, self.at_us)

    def forget(self, rollout: int, agent: str, state: str = "RUNNING", version: str = OLD) -> None:
        """The agent has removed its order, which was withdrawn, and says so."""
        withdrawn = generations(self.database, rollout)[agent] + 1
        assert self.registry.version_orders([("acme", agent)]) == {("acme", agent): withdrawn}
        assert self.registry.desired_version(("acme", agent)) == VersionDesired(withdrawn, None, None)
        said = seen(version, state, withdrawn, session=f"session-{agent}")
        assert self.registry.record_version(("acme", agent), said, self.at_us)

    def state(self, rollout: int) -> tuple[str, int]:
        with self.database.read() as connection:
            row = connection.execute(select(Rollout).where(Rollout.id == rollout)).one()
            return row.state, row.group_number

    def reasons(self, rollout: int) -> dict[str, Reason]:
        with self.database.read() as connection:
            row = connection.execute(select(Rollout).where(Rollout.id == rollout)).one()
            have = forms(connection, row.tenant_id)
            found = rollouts.page(connection, rollout, "", 1_000, states=())
            return {each.name: reason(each, row, have) for each in found}


@pytest.fixture
def fleet(database: Database, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Time is the test's, on databases that have a clock of their own too."""
    monkeypatch.setattr(rollout_turns, "now_of", lambda _, at_us: at_us)
    add_release(database, "acme", OLD)
    add_release(database, "acme", NEW)
    return Fleet(database, registry)


def test_rollout_when_it_begins_then_one_agent_is_asked_and_the_rest_after_it_has_stayed_well(fleet: Fleet) -> None:
    connect(fleet.registry, "acme", "a", "b", "c")
    rollout = fleet.start(order(wait_us=10 * SECOND, at_once=1))
    fleet.turns(3)
    assert states(fleet.database, rollout) == {"a": "offered", "b": "waiting", "c": "waiting"}
    assert fleet.registry.version_orders([("acme", "a"), ("acme", "b")]) == {("acme", "a"): 1, ("acme", "b"): 0}
    desired = fleet.registry.desired_version(("acme", "a"))
    assert desired is not None
    assert (desired.package.version, desired.way_back.version) == (NEW, OLD)
    fleet.say(rollout, "a", "DOWNLOADING")
    fleet.say(rollout, "a", "INSTALLING")
    fleet.turns(2)
    assert states(fleet.database, rollout)["a"] == "installing"
    fleet.say(rollout, "a", "RUNNING", NEW)
    fleet.turns(5)  # the wait begins with the first of them
    assert fleet.state(rollout) == ("running", 0)
    fleet.turns(2)
    assert states(fleet.database, rollout) == {"a": "done", "b": "offered", "c": "waiting"}  # one at once
    fleet.say(rollout, "b", "RUNNING", NEW)
    fleet.turn()
    assert states(fleet.database, rollout)["c"] == "offered"
    fleet.say(rollout, "c", "RUNNING", NEW)
    fleet.turn()
    assert fleet.state(rollout) == ("done", 1)
    assert set(fleet.reasons(rollout).values()) == {Reason.RUNS_VERSION}


def test_wait_when_the_canary_leaves_or_time_goes_wrong_then_it_is_not_over_sooner(fleet: Fleet) -> None:
    connect(fleet.registry, "acme", "a", "b")
    rollout = fleet.start(order(wait_us=20 * SECOND))
    fleet.turn()
    fleet.say(rollout, "a", "RUNNING", NEW)
    fleet.turns(8)
    fleet.registry.record_agent_gone("acme", "a", "session-a", fleet.at_us)
    fleet.turns(20)
    assert fleet.state(rollout) == ("running", 0)
    assert fleet.reasons(rollout)["a"] is Reason.NOT_CONNECTED
    connect(fleet.registry, "acme", "a", version=NEW)
    fleet.turns(2)
    fleet.turn(86_400)  # nobody was there for a day: that is ten seconds
    fleet.turn(-40_000)  # and the clock goes back
    assert fleet.state(rollout) == ("running", 0)
    fleet.turns(5)
    assert fleet.state(rollout) == ("running", 1)


@pytest.mark.parametrize("said", ["ROLLED_BACK", "REFUSED"])
def test_canary_when_it_fails_then_nothing_more_is_offered_until_somebody_goes_on(fleet: Fleet, said: str) -> None:
    connect(fleet.registry, "acme", "a", "b")
    rollout = fleet.start(order())
    fleet.turn()
    problem = Problem("UPGRADES_OFF", "installing: no key is there", terminal=True, at_us=1)
    fleet.say(rollout, "a", said, problem=problem)
    assert fleet.state(rollout) == ("halted", 0)  # at once, not with the next turn
    fleet.turns(5)
    assert states(fleet.database, rollout) == {"a": "failed", "b": "waiting"}
    assert fleet.reasons(rollout) == {"a": Reason(said), "b": Reason.NOT_OFFERED}
    with fleet.database.write() as connection:
        rollouts.resume(connection, tenant_id(connection, "acme"))
    fleet.turn()
    assert states(fleet.database, rollout)["a"] == "offered"
    assert generations(fleet.database, rollout)["a"] == 2
    fleet.say(rollout, "a", "RUNNING", NEW)
    fleet.turns(3)
    assert states(fleet.database, rollout) == {"a": "done", "b": "offered"}


def test_agent_when_it_does_not_return_then_it_has_failed_by_time_that_was_looked_after(fleet: Fleet) -> None:
    connect(fleet.registry, "acme", "a", "b")
    rollout = fleet.start(order(return_us=30 * SECOND))
    fleet.turn()
    fleet.say(rollout, "a", "INSTALLING")
    fleet.turn(3_600)
    assert states(fleet.database, rollout)["a"] == "installing"
    fleet.turns(11)
    assert (fleet.state(rollout)[0], fleet.reasons(rollout)["a"]) == ("halted", Reason.NOT_RETURNED)
    fleet.say(rollout, "a", "RUNNING", NEW)  # after all
    assert states(fleet.database, rollout)["a"] == "done"


def test_failures_when_as_many_are_allowed_then_it_goes_on_and_halts_with_one_more(fleet: Fleet) -> None:
    connect(fleet.registry, "acme", "a", "b", "c")
    rollout = fleet.start(order(Group("all", ("*",)), most_failures=1))
    fleet.turn()
    fleet.say(rollout, "a", "ROLLED_BACK")
    assert fleet.state(rollout)[0] == "running"
    fleet.say(rollout, "b", "INSTALLING")
    fleet.say(rollout, "b", "ROLLED_BACK")
    assert fleet.state(rollout)[0] == "halted"
    # its offer was withdrawn, but its host has it: what is in work ends as it ends
    assert states(fleet.database, rollout)["c"] == "waiting"
    fleet.say(rollout, "c", "INSTALLING")
    assert states(fleet.database, rollout)["c"] == "installing"
    fleet.say(rollout, "c", "RUNNING", NEW)
    assert states(fleet.database, rollout)["c"] == "done"


def test_halt_when_the_way_back_was_asked_for_then_agents_that_run_it_are_given_their_former_version(
    fleet: Fleet,
) -> None:
    connect(fleet.registry, "acme", "a", "b", "c")
    rollout = fleet.start(order(roll_back=True))
    fleet.turn()
    fleet.say(rollout, "a", "RUNNING", NEW)
    fleet.turns(3)
    fleet.say(rollout, "b", "ROLLED_BACK")
    with fleet.database.read() as connection:
        back = rollouts.newest(connection, tenant_id_of(fleet))
    assert (back.back_of, back.state) == (rollout, "running")
    assert states(fleet.database, back.id) == {"a": "waiting", "b": "waiting", "c": "waiting"}
    fleet.turn()
    assert states(fleet.database, back.id)["b"] == "done"  # its host has installed the former one
    desired = fleet.registry.desired_version(("acme", "a"))
    assert desired is not None
    assert (desired.package.version, desired.way_back.version) == (OLD, NEW)
    fleet.say(back.id, "a", "RUNNING", OLD)
    fleet.turns(2)
    assert states(fleet.database, back.id)["c"] == "waiting"  # its host may have the offer that was withdrawn
    assert fleet.reasons(back.id)["c"] is Reason.OTHER_ORDER
    fleet.turns(35)
    assert fleet.state(rollout)[0] == "cancelled"
    assert states(fleet.database, back.id)["c"] == "waiting"
    fleet.forget(rollout, "c")
    fleet.turn()
    assert fleet.state(back.id)[0] == "done"


def tenant_id_of(fleet: Fleet) -> int:
    with fleet.database.write() as connection:
        return tenant_id(connection, "acme")


def test_back_when_somebody_orders_it_then_all_who_changed_go_back_and_those_in_work_when_they_are_done(
    fleet: Fleet,
) -> None:
    connect(fleet.registry, "acme", "a", "b", "c", "d")
    rollout = fleet.start(order(Group("all", ("*",)), at_once=3))
    fleet.turn()
    fleet.say(rollout, "a", "RUNNING", NEW)
    fleet.say(rollout, "b", "INSTALLING")
    with fleet.database.write() as connection:
        back = rollouts.back(connection, tenant_id(connection, "acme"), "admin", fleet.at_us)
    assert states(fleet.database, back) == {"a": "waiting", "b": "waiting", "c": "waiting"}
    fleet.turns(2)
    # b says that it runs the former one, but its host is at work, and c's may be
    assert states(fleet.database, back) == {"a": "offered", "b": "waiting", "c": "waiting"}
    fleet.say(rollout, "b", "RUNNING", NEW)
    fleet.say(back, "a", "RUNNING", OLD)
    fleet.turn()
    assert states(fleet.database, back)["b"] == "offered"
    fleet.say(back, "b", "RUNNING", OLD)
    fleet.forget(rollout, "c")
    fleet.turns(35)
    assert states(fleet.database, back) == {"a": "done", "b": "done", "c": "done"}
    assert (fleet.state(rollout)[0], fleet.state(back)[0]) == ("cancelled", "done")


def test_agents_when_they_can_not_be_upgraded_then_each_has_a_reason_and_their_group_goes_on(fleet: Fleet) -> None:
    connect(fleet.registry, "acme", "able", "zz")
    connect(fleet.registry, "acme", "older", version=None)
    connect(fleet.registry, "acme", "source", form="")
    connect(fleet.registry, "acme", "redhat", form="rpm")
    connect(fleet.registry, "acme", "ancient", version="0.0.9")
    connect(fleet.registry, "acme", "there", version=NEW)
    connect(fleet.registry, "acme", "away")
    fleet.registry.record_agent_gone("acme", "away", "session-away", 5)
    rollout = fleet.start(order(Group("first", ("[a-y]*",)), Group("rest", ("*",))))
    fleet.turn()
    assert fleet.reasons(rollout) == {
        "able": Reason.OFFERED,
        "older": Reason.VERSION_NOT_SAID,
        "source": Reason.NOT_A_PACKAGE,
        "redhat": Reason.NO_PACKAGE,
        "ancient": Reason.NO_WAY_BACK,
        "there": Reason.RUNS_VERSION,
        "away": Reason.NOT_CONNECTED,
        "zz": Reason.GROUP_WAITS,
    }
    with fleet.database.read() as connection:
        have = forms(connection, tenant_id_of(fleet))
        waiting = with_agents(rollout, rollouts.Agent.name).where(rollouts.RolloutAgent.state == "waiting")
        held = set(connection.execute(waiting.where(holds(have))).scalars())
    waiting_for = {name for name, why in fleet.reasons(rollout).items() if why not in LEFT_OUT}
    assert held == waiting_for - {"able", "there"}
    fleet.say(rollout, "able", "RUNNING", NEW)
    fleet.turns(3)
    assert fleet.state(rollout)[1] == 0  # it waits for the one that is away
    with fleet.database.write() as connection:
        assert rollouts.skip(connection, tenant_id(connection, "acme"), "aw*")[1] == 1
    fleet.turns(2)
    assert fleet.state(rollout)[1] == 1
    connect(fleet.registry, "acme", "away")
    fleet.turn()
    assert states(fleet.database, rollout)["away"] == "offered"


def test_group_when_none_of_it_can_be_upgraded_then_the_next_one_does_not_begin(fleet: Fleet) -> None:
    connect(fleet.registry, "acme", "a", version=None)
    connect(fleet.registry, "acme", "b")
    rollout = fleet.start(order(Group("canary", ("a",)), Group("rest", ("*",))))
    fleet.turns(10)
    assert fleet.state(rollout) == ("running", 0)
    assert states(fleet.database, rollout) == {"a": "waiting", "b": "waiting"}


def test_commands_when_the_rollout_is_not_so_then_they_are_refused_and_nothing_changes(fleet: Fleet) -> None:
    connect(fleet.registry, "acme", "a")
    with fleet.database.write() as connection, pytest.raises(RolloutUnknown):
        rollouts.pause(connection, tenant_id(connection, "acme"))
    with pytest.raises(RequestInvalid, match="no agent of its groups"):
        fleet.start(order(Group("none", ("x*",))))
    rollout = fleet.start(order())
    with pytest.raises(RolloutRuns):
        fleet.start(order())
    with fleet.database.write() as connection, pytest.raises(ReleaseInUse):
        agent_packages.remove(connection, tenant_id(connection, "acme"), NEW)
    fleet.turn()
    with fleet.database.write() as connection:
        rollouts.pause(connection, tenant_id(connection, "acme"))
    fleet.turns(2)
    assert states(fleet.database, rollout) == {"a": "waiting"}
    fleet.forget(rollout, "a")
    assert fleet.registry.version_orders([("acme", "a")]) == {("acme", "a"): 0}
    assert fleet.registry.desired_version(("acme", "a")) is None
    with fleet.database.write() as connection:
        rollouts.cancel(connection, tenant_id(connection, "acme"))
    fleet.turns(40)
    assert fleet.state(rollout)[0] == "cancelled"
    with fleet.database.write() as connection:
        agent_packages.remove(connection, tenant_id(connection, "acme"), NEW)


def test_tenants_when_one_has_a_rollout_then_agents_of_the_other_see_nothing_of_it(fleet: Fleet) -> None:
    connect(fleet.registry, "acme", "a")
    connect(fleet.registry, "globex", "a")
    add_release(fleet.database, "globex", OLD)
    rollout = fleet.start(order())
    fleet.turn()
    assert fleet.registry.desired_version(("globex", "a")) is None
    assert fleet.registry.version_orders([("globex", "a")]) == {("globex", "a"): 0}
    fleet.registry.record_version(("globex", "a"), seen(NEW, "ROLLED_BACK", 1), 1)
    assert states(fleet.database, rollout) == {"a": "offered"}
    with pytest.raises(Exception, match="no version"):
        fleet.start(order(), "globex")


def test_session_when_an_agent_is_older_then_it_is_named_and_recorded_as_any(fleet: Fleet) -> None:
    fleet.registry.record_agent(AgentSeen("acme", "old", "s", "0.0.1", "db", (), 1))
    with fleet.database.read() as connection:
        ((row, group, why),) = rollouts.planned(connection, tenant_id_of(fleet), order())
    assert (row.name, group, why) == ("old", "rest", Reason.VERSION_NOT_SAID)


def test_packages_when_two_compare_sums_at_once_then_the_later_one_changes_nothing(fleet: Fleet) -> None:
    files, sums = release_files("0.3.0", ("deb",))
    ((name, data),) = files.items()
    owner = tenant_id_of(fleet)
    with fleet.database.write() as connection:
        agent_packages.begin(connection, owner, sums, b"s", {name: len(data)}, 1)
        agent_packages.append(connection, owner, "0.3.0", name, 0, b"x" * len(data), 1)
    with fleet.database.read() as connection:
        first = second = agent_packages.compare(connection, owner, "0.3.0")
    assert first.wrong is not None
    with fleet.database.write() as connection:
        assert agent_packages.settle(connection, first, 1)
    with fleet.database.write() as connection, pytest.raises(PackageInvalid, match="changed while"):
        agent_packages.settle(connection, second, 1)
    with fleet.database.write() as connection:  # it has come anew, and is good
        agent_packages.append(connection, owner, "0.3.0", name, 0, data, 1)
        assert agent_packages.settle(connection, agent_packages.compare(connection, owner, "0.3.0"), 1)
    with fleet.database.write() as connection:
        assert not agent_packages.settle(connection, second, 1)
    with fleet.database.read() as connection:
        row = connection.execute(select(AgentPackage).where(AgentPackage.name == name)).one()
        assert agent_packages.read(connection, row.id, 0, row.size_bytes) == data[: agent_packages.PIECE_BYTES]


def test_packages_when_a_release_is_announced_anew_then_a_comparison_from_before_does_not_complete_it(
    fleet: Fleet,
) -> None:
    owner = tenant_id_of(fleet)

    def bring(data: bytes) -> None:
        agent_packages.begin(connection, owner, sums, b"s", {name: len(data)}, 1)
        agent_packages.append(connection, owner, "0.3.0", name, 0, data, 1)

    files, sums = release_files("0.3.0", ("deb",))
    ((name, good),) = files.items()
    with fleet.database.write() as connection:
        bring(good)
    with fleet.database.read() as connection:
        compared = agent_packages.compare(connection, owner, "0.3.0")
    with fleet.database.write() as connection:
        agent_packages.remove(connection, owner, "0.3.0")
        files, sums = release_files("0.3.0", ("rpm",))
        ((name, good),) = files.items()
        bring(b"x" * len(good))
    with fleet.database.write() as connection, pytest.raises(PackageInvalid, match="changed while"):
        agent_packages.settle(connection, compared, 1)


def test_report_when_a_former_stream_is_written_last_then_what_was_told_later_stays(fleet: Fleet) -> None:
    connect(fleet.registry, "acme", "a", "b")
    rollout = fleet.start(order())
    fleet.turn()
    now = seen(NEW, "RUNNING", 1)
    assert fleet.registry.record_version(("acme", "a"), now, fleet.at_us + 100)
    former = seen(OLD, "INSTALLING", 1, session="session-of-before")
    assert fleet.registry.record_version(("acme", "a"), former, fleet.at_us + 50)
    fleet.turns(3)
    assert states(fleet.database, rollout) == {"a": "done", "b": "offered"}
    # the newest session is believed, whatever its gateway's clock says
    back = seen(OLD, "ROLLED_BACK", 1, session="session-a")
    assert fleet.registry.record_version(("acme", "a"), back, fleet.at_us - 1_000 * SECOND + 5)
    assert fleet.reasons(rollout)["a"] is Reason.OTHER_VERSION
    # but for what it said of an earlier order
    assert fleet.registry.record_version(("acme", "a"), seen(NEW, "RUNNING", 0, session="session-a"), 3)
    assert fleet.reasons(rollout)["a"] is Reason.OTHER_VERSION


def test_rollout_when_none_of_its_last_group_can_be_upgraded_then_it_is_done(fleet: Fleet) -> None:
    connect(fleet.registry, "acme", "a")
    connect(fleet.registry, "acme", "old-1", "old-2", version=None)
    rollout = fleet.start(order())
    fleet.turn()
    fleet.say(rollout, "a", "RUNNING", NEW)
    fleet.turns(4)
    assert fleet.state(rollout) == ("done", 1)
    with fleet.database.write() as connection:
        back = rollouts.back(connection, tenant_id(connection, "acme"), "admin", fleet.at_us)
    fleet.turn()
    fleet.say(back, "a", "REFUSED", NEW)
    fleet.turns(2)
    assert fleet.state(back)[0] == "done"
    assert states(fleet.database, back) == {"a": "failed"}


def test_wait_when_one_of_a_large_group_is_away_then_it_begins_anew_only_where_that_lasts(fleet: Fleet) -> None:
    names = [f"a-{number:03}" for number in range(120)]
    connect(fleet.registry, "acme", *names, "b")
    rollout = fleet.start(order(Group("many", ("a-*",)), Group("rest", ("*",)), at_once=200, wait_us=20 * SECOND))
    fleet.turn()
    for name in names:
        fleet.say(rollout, name, "RUNNING", NEW)
    fleet.turns(6)
    fleet.registry.record_agent_gone("acme", names[0], f"session-{names[0]}", fleet.at_us)
    fleet.turns(6)
    assert fleet.state(rollout) == ("running", 1)  # one of 120, for 12 s


def test_wait_when_some_of_a_large_group_stay_away_then_it_is_not_over(fleet: Fleet) -> None:
    names = [f"a-{number:03}" for number in range(120)]
    connect(fleet.registry, "acme", *names, "b")
    rollout = fleet.start(order(Group("many", ("a-*",)), Group("rest", ("*",)), at_once=200, wait_us=90 * SECOND))
    fleet.turn()
    for name in names:
        fleet.say(rollout, name, "RUNNING", NEW)
    fleet.turn()
    fleet.registry.record_agent_gone("acme", names[0], f"session-{names[0]}", fleet.at_us)
    fleet.turns(80)  # it is longer away than one may
    assert fleet.state(rollout) == ("running", 0)
    connect(fleet.registry, "acme", names[0], version=None)
    fleet.turns(40)
    fleet.registry.record_agent_gone("acme", names[0], f"session-{names[0]}", fleet.at_us)
    fleet.registry.record_agent_gone("acme", names[1], f"session-{names[1]}", fleet.at_us)
    fleet.turns(10)  # two are more than one of a hundred
    assert fleet.state(rollout) == ("running", 0)


def test_turns_when_a_rollout_is_paused_then_they_are_rare_and_change_no_agent(fleet: Fleet) -> None:
    connect(fleet.registry, "acme", "a", "b")
    fleet.start(order())
    fleet.turn()
    with fleet.database.write() as connection:
        rollouts.pause(connection, tenant_id(connection, "acme"))
    statements: list[str] = []

    def note(_c: object, _cursor: object, statement: str, *_rest: object) -> None:
        statements.append(statement)

    event.listen(fleet.database.engine, "before_cursor_execute", note)
    moved = []
    for _ in range(60):
        fleet.at_us += 2 * SECOND
        moved.append(fleet.registry.move_rollouts(fleet.at_us))
    assert sum(moved) == 2
    assert not [each for each in statements if each.startswith("UPDATE rollout_agent")]


def test_back_when_a_host_does_not_answer_its_order_then_it_is_not_done_before_it_has_forgotten_it(
    fleet: Fleet,
) -> None:
    connect(fleet.registry, "acme", "a")
    rollout = fleet.start(order(return_us=60 * SECOND))
    fleet.turn()
    fleet.say(rollout, "a", "INSTALLING")
    with fleet.database.write() as connection:
        back = rollouts.back(connection, tenant_id(connection, "acme"), "admin", fleet.at_us)
    fleet.turns(100)
    assert fleet.state(rollout)[0] == "cancelled"
    assert states(fleet.database, back) == {"a": "waiting"}
    assert fleet.reasons(back)["a"] is Reason.OTHER_ORDER
    fleet.forget(rollout, "a", "INSTALLING")  # its host is at work nevertheless
    fleet.turns(2)
    assert states(fleet.database, back) == {"a": "waiting"}
    fleet.forget(rollout, "a", "RUNNING", NEW)  # and has installed it
    fleet.turn()
    assert states(fleet.database, back) == {"a": "offered"}
    assert generations(fleet.database, back)["a"] == 3
    fleet.say(back, "a", "RUNNING", OLD)
    fleet.turn()
    assert fleet.state(back)[0] == "done"


def test_order_when_it_is_withdrawn_and_begun_nevertheless_then_it_ends_as_its_host_says(fleet: Fleet) -> None:
    connect(fleet.registry, "acme", "a")
    rollout = fleet.start(order())
    fleet.turn()
    with fleet.database.write() as connection:
        rollouts.pause(connection, tenant_id(connection, "acme"))
    fleet.forget(rollout, "a", "INSTALLING")
    assert states(fleet.database, rollout) == {"a": "installing"}
    said = seen(OLD, "ROLLED_BACK", 2, session="session-a")
    assert fleet.registry.record_version(("acme", "a"), said, fleet.at_us)
    assert fleet.state(rollout)[0] == "halted"
    assert states(fleet.database, rollout) == {"a": "failed"}


def test_order_when_an_agent_has_not_answered_its_withdrawal_then_the_next_one_has_a_number_of_its_own(
    fleet: Fleet,
) -> None:
    connect(fleet.registry, "acme", "a")
    fleet.start(order())
    fleet.turn()
    with fleet.database.write() as connection:
        rollouts.pause(connection, tenant_id(connection, "acme"))
    assert fleet.registry.version_orders([("acme", "a")]) == {("acme", "a"): 2}
    with fleet.database.write() as connection:
        rollouts.resume(connection, tenant_id(connection, "acme"))
    fleet.turn()
    assert fleet.registry.version_orders([("acme", "a")]) == {("acme", "a"): 3}
