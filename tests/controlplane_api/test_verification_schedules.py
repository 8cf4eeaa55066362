"""Verifications on a schedule: one at a time, the oldest first, spread over the period, whatever the clock does."""

from collections.abc import Sequence

import pytest
from menura.instants import now_us
from sqlalchemy import func, select, update

from controlplane_api import rereads, verification_schedules, verifications
from controlplane_api.database import Database
from controlplane_api.dump_lives import DEFAULT_OPTIONS
from controlplane_api.errors import RequestInvalid
from controlplane_api.models import Dump, Source, SourceTable, Sync, VerificationSchedule
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.selection import Pattern
from controlplane_api.syncs import stop_tables
from controlplane_api.verification_schedules import Schedule, spacing_us
from gateway.registry import GatewayRun, Problem
from tests.controlplane_api import facts
from tests.controlplane_api.commands import menura
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.dump_facts import begin, command, dump, row_of
from tests.controlplane_api.facts import KEY, LANDING, cut, entry, started
from tests.controlplane_api.lake_facts import Sink
from tests.controlplane_api.test_api import SHOP
from tests.controlplane_api.verdict_facts import verdict
from tests.stack import http_client

GATEWAY = GatewayRun("gw-1", "run")
WEEK = Schedule(7 * 86_400)
DAY_US = 86_400_000_000
WEEK_US = 7 * DAY_US
NAMES = ("a", "b", "c", "d")
SPACING_US = spacing_us(WEEK.every_seconds, len(NAMES))


class Scheduled:
    """A source whose tables stream, owned by a gateway; its verifications end when they are told to."""

    def __init__(self, database: Database, registry: SqlRegistry, names: Sequence[str]) -> None:
        self.database, self.registry = database, registry
        facts.record_shop(registry, *names)
        begin(database, *names)
        registry.apply_entry(LANDING, entry(1, cut(1, start=[started(name, 0) for name in names])))
        registry.begin_gateway(GATEWAY, 3_600)
        self.epoch = registry.assign_source(KEY, GATEWAY, "run-1").epoch
        self.now = now_us()
        self.sink = Sink()
        self.told = 0

    def put(self, schedule: Schedule = WEEK) -> None:
        with self.database.write() as connection:
            source_id = connection.execute(select(Source.id)).scalar_one()
            verification_schedules.put(connection, source_id, schedule, self.now)

    def tick(self, after_us: int = 0, gateway: GatewayRun = GATEWAY) -> list[str]:
        """Tables whose verifications run after it."""
        self.now += after_us
        self.registry.order_verifications(gateway, self.now)
        return self.running()

    def order(self, name: str) -> str:
        """A verification of one table, by command; its UUID."""
        (outcome,) = command(self.database, verifications.start_verifications, [("shop", name)], DEFAULT_OPTIONS)
        return outcome.dump

    def running(self) -> list[str]:
        with self.database.read() as connection:
            names = select(SourceTable.name).join(Dump, Dump.table_id == SourceTable.id).where(Dump.state == "running")
            return list(connection.execute(names.order_by(Dump.id)).scalars())

    def end(self, kind: str = "equal", **changed: object) -> None:
        """Of all that run: a sink tells what it has found, now."""
        names = self.running()
        with self.database.write() as connection:
            connection.execute(update(Dump).where(Dump.state == "running").values(state="done"))
        for name in names:
            self.told += 1
            facts_of = {"read_at_us": self.now, "at_us": self.now, "verification": f"{name}-{self.told}", **changed}
            told = (verdict(1, kind, table=name, **facts_of),)
            self.sink.tell(self.database, at_us=self.now, verdicts=told)

    def turns(self, number: int, step_us: int, kind: str = "equal") -> list[str]:
        """Which were ordered in so many ticks, one step apart, each ended before the next."""
        found = []
        for _ in range(number):
            found += self.tick(step_us)
            self.end(kind)
        return found


@pytest.fixture
def four(database: Database, registry: SqlRegistry) -> Scheduled:
    return Scheduled(database, registry, NAMES)


def test_schedule_when_no_table_was_verified_then_one_at_a_time_spread_over_the_period(four: Scheduled) -> None:
    assert four.tick() == [], "there is no schedule"
    four.put()
    assert four.tick() == ["a"]
    assert four.tick(WEEK_US) == ["a"], "one at a time, and never twice"
    four.now -= WEEK_US
    four.end()
    assert four.tick(1_000_000) == [], "not a second one at once"
    assert four.tick(SPACING_US) == ["b"]
    four.end()
    assert four.turns(2, SPACING_US) == ["c", "d"]
    assert SPACING_US * len(NAMES) <= WEEK_US * 3 // 4
    assert four.turns(50, 60_000_000) == [], "all are proven"
    assert four.turns(1, WEEK_US * 7 // 8 - 3 * SPACING_US) == ["a"], "before its proof is a week old"


def test_schedule_when_the_control_plane_was_off_for_a_month_then_goes_on_at_the_same_pace(four: Scheduled) -> None:
    four.put()
    four.turns(4, SPACING_US)
    four.now += 30 * DAY_US
    assert four.turns(5, 5_000_000) == ["a"]
    assert four.turns(3, SPACING_US) == ["b", "c", "d"]


def test_schedule_when_the_clock_goes_back_then_orders_nothing_twice(four: Scheduled) -> None:
    four.put()
    four.turns(4, SPACING_US)
    four.now -= 5 * DAY_US
    assert four.turns(20, 3_600_000_000) == []
    four.now -= 60 * DAY_US
    assert four.tick() == [], "it is noticed, and the next turn is a step ahead"
    assert four.turns(1, 5_000_000) == []
    assert four.turns(2, SPACING_US) == ["a", "b"], "times of a wrong clock prove nothing"


def test_schedule_when_two_gateways_ask_then_the_owner_alone_orders_and_once(
    four: Scheduled, registry: SqlRegistry
) -> None:
    four.put()
    other = GatewayRun("gw-2", "run")
    registry.begin_gateway(other, 3_600)
    assert four.tick(gateway=other) == []
    with four.database.read() as connection:
        source_id = connection.execute(select(Source.id)).scalar_one()
    for expected in (True, False):  # both have looked before one has ordered
        with four.database.write() as connection:
            assert bool(verification_schedules.order_next(connection, source_id, four.now)) is expected
    four.end()
    registry.release_source(KEY, GATEWAY, four.epoch)
    assert four.tick(SPACING_US) == [], "no agent is there"


def test_schedule_when_verifications_tell_nothing_then_others_have_their_turn_before_they_are_tried_again(
    four: Scheduled,
) -> None:
    four.put()
    assert four.turns(6, SPACING_US, "unknown") == ["a", "b", "c", "d", "a", "b"]
    assert four.turns(4, SPACING_US) == ["c", "d", "a", "b"]
    assert four.turns(2, SPACING_US) == []


def test_schedule_when_tables_can_not_be_verified_then_the_others_are(four: Scheduled) -> None:
    four.put()
    assert four.tick() == ["a"]
    (ordered,) = four.registry.dumps(KEY).dumps
    assert (ordered.verifies, ordered.rows_per_second) == (True, 0)
    problem = Problem("VERIFICATION_IMPOSSIBLE", "It is a view.", terminal=True, at_us=four.now)
    four.registry.record_dump_failed(KEY, ordered.dump, problem, four.now)
    with four.database.write() as connection:
        of_b = select(SourceTable.id).where(SourceTable.name == "b").scalar_subquery()
        connection.execute(update(Sync).where(Sync.table_id == of_b).values(earlier_rows_missing="purged"))
    uuid = dump(four.database, "c")
    assert four.tick(SPACING_US * 2) == ["c", "d"], "the table that is dumped waits"
    command(four.database, rereads.cancel, uuid)
    four.end()
    assert four.turns(2, SPACING_US * 2) == ["c"], "what was refused has to wait"
    assert four.turns(1, SPACING_US * 2) == ["a"], "and is tried again after a period"


def test_schedule_when_it_has_a_pattern_a_window_and_a_rate_then_these_hold(four: Scheduled) -> None:
    four.now = 1_800_000_000_000_000 // DAY_US * DAY_US + 12 * 3_600_000_000  # noon
    four.put(Schedule(7 * 86_400, Pattern("shop", "[cd]"), 500, "22:00-05:00"))
    assert four.tick() == [] and four.tick(9 * 3_600_000_000) == []
    assert four.tick(3_600_000_000) == ["c"]
    (ordered,) = four.registry.dumps(KEY).dumps
    assert ordered.rows_per_second == 500
    four.end()
    assert four.turns(14 * 24, 3_600_000_000)[:2] == ["d", "c"]
    with pytest.raises(RequestInvalid):
        four.put(Schedule(3_600, window="25:00-05:00"))


def test_schedule_when_it_is_taken_away_then_nothing_more_is_ordered(four: Scheduled) -> None:
    four.put()
    with four.database.write() as connection:
        source_id = connection.execute(select(Source.id)).scalar_one()
        assert verification_schedules.remove(connection, source_id)
        assert not verification_schedules.remove(connection, source_id)
    assert four.tick() == []


def test_schedule_when_a_table_was_verified_often_then_the_last_ones_are_remembered(
    database: Database, registry: SqlRegistry
) -> None:
    one = Scheduled(database, registry, ["a"])
    one.put()
    assert len(one.turns(20, WEEK_US)) == 20
    with database.read() as connection:
        kept = connection.execute(select(func.count()).select_from(Dump)).scalar_one()
    assert kept == verification_schedules.KEPT_VERIFICATIONS + 1


def test_schedule_when_somebody_verifies_the_table_himself_then_it_waits_for_its_next_turn(four: Scheduled) -> None:
    four.put()
    with four.database.write() as connection:
        connection.execute(update(VerificationSchedule).values(next_at_us=four.now + 1))
    (outcome,) = command(four.database, verifications.start_verifications, [("shop", "a")], DEFAULT_OPTIONS)
    assert row_of(four.database, outcome.dump)["state"] == "running"
    assert four.tick(5_000_000) == ["a"]
    four.end()
    assert four.tick(5_000_000) == ["b"]


@pytest.mark.parametrize("kind", ["sqlite"])
def test_clients_when_they_set_a_schedule_then_it_is_shown_planned_guarded_audited_and_removed(
    database: Database, registry: SqlRegistry
) -> None:
    scheduled = Scheduled(database, registry, ["orders"])
    path = f"{SHOP}/verification-schedule"
    with serving(database) as url, http_client(url) as client:
        environment = {"MENURA_API": url, "MENURA_TENANT": "acme"}
        before = client.get(path)
        assert before.json() == {"source": "shop", "schedule": None}
        done = menura(
            "verify", "schedule", "shop", "--every", "2d", "--tables", "shop.*", "--rows-per-second", "900",
            "--window", "22:00-05:00 Europe/Berlin", "--dry-run", **environment,
        )  # fmt: skip
        assert (
            "shop: shop.* every 2.0 d, at most 900 rows a second, begun within 22:00-05:00 Europe/Berlin" in done.stdout
        )
        assert client.get(path).json()["schedule"] is None
        assert menura("verify", "schedule", "shop", "--every", "2d", **environment).returncode == 0
        found = client.get(path)
        assert found.headers["etag"] != before.headers["etag"]
        assert found.json()["schedule"]["every_seconds"] == 2 * 86_400
        late = {"if-match": before.headers["etag"]}
        assert client.put(path, json={"every_seconds": 7_200}, headers=late).status_code == 412
        for wrong in ({"every_seconds": 60}, {"window": "now"}, {"rows_per_second": -1}, {"other": 1}):
            assert client.put(path, json=wrong).status_code == 422, wrong
        assert client.put(path.replace("acme", "other"), json={}).status_code == 404
        scheduled.now = now_us()
        assert scheduled.tick() == ["orders"]
        scheduled.end("differs")
        metrics = client.get("/metrics").text
        assert 'menura_verification_coverage_tables{source="shop",state="differs",tenant="acme"} 1.0' in metrics
        assert 'menura_verification_coverage_rows{source="shop",state="differs",tenant="acme"} 1000.0' in metrics
        shown = menura("verify", "coverage", **environment)
        assert ("0.0 %" in shown.stdout, "2.0 d" in shown.stdout) == (True, True), shown.stdout
        assert client.delete(path, headers={"content-type": "application/json"}).status_code == 422
        assert "no table is verified by itself" in menura("verify", "schedule", "off", "shop", **environment).stdout
        assert "no table is verified by itself" in menura("verify", "schedule", "show", "shop", **environment).stdout
        entries = client.get("/api/v1/tenants/acme/audit").json()["entries"]
        assert [(each["action"], each["found"]) for each in entries[:2]] == [
            ("remove verification schedule", "shop"),
            ("set verification schedule", "shop *.* every 172800 s"),
        ]


@pytest.mark.parametrize("kind", ["sqlite"])
def test_coverage_when_tables_are_proven_and_not_then_each_counts_once_and_unprovable_ones_say_why(
    database: Database, registry: SqlRegistry
) -> None:
    names = ("proven", "old", "unknown", "differs", "lacking", "never")
    scheduled = Scheduled(database, registry, names)
    now = now_us()
    told = [
        ("proven", "equal", now),
        ("old", "equal", now - 8 * DAY_US),
        ("unknown", "equal", now),
        ("differs", "differs", now),
    ]
    verdicts = [verdict(1, kind, name, read_at_us=at_us, at_us=at_us) for name, kind, at_us in told]
    scheduled.sink.tell(
        database, at_us=now, verdicts=(*verdicts, verdict(2, "void", "unknown", read_at_us=now, at_us=now))
    )
    with database.write() as connection:
        of_it = select(SourceTable.id).where(SourceTable.name == "lacking").scalar_subquery()
        connection.execute(update(Sync).where(Sync.table_id == of_it).values(earlier_rows_missing="purged"))
    with serving(database) as url, http_client(url) as client:
        found = client.get(f"{SHOP}/coverage").json()
        assert found["within_seconds"] == 7 * 86_400
        assert found["tables"] == {"proven": 1, "unproven": 2, "differs": 1, "unprovable": 1, "never": 1}
        assert found["rows"]["unproven"] == 2_000
        assert found["oldest_proof_age_us"] >= 8 * DAY_US
        (other,) = client.get("/api/v1/tenants/acme/coverage?within_seconds=864000").json()["sources"]
        assert other["tables"]["proven"] == 2
        shown = client.get(f"{SHOP}/proofs?coverage=unprovable&coverage=unproven&limit=2").json()
        assert [each["table"] for each in shown["proofs"]] == ["lacking", "old"]
        assert shown["proofs"][0]["unprovable"] == "the lake lacks rows of it: purged"
        last = client.get(f"{SHOP}/proofs?coverage=unprovable&coverage=unproven&cursor={shown['next_cursor']}").json()
        assert [each["table"] for each in last["proofs"]] == ["unknown"]
        command(database, stop_tables, [("shop", "never")])
        assert client.get(f"{SHOP}/coverage").json()["tables"]["never"] == 0
        assert client.get(f"{SHOP}/tables/shop/never/proof").json()["unprovable"] == "its sync is stopped"
