"""What the API tells Prometheus, and that what agents say makes no series."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import httpx
import pytest
from menura.bounds import MAX_INT64
from menura.instants import now_us
from sqlalchemy import Connection, select, update

from controlplane_api.api import coverage_queries, metrics, source_queries
from controlplane_api.api.metrics import FIGURES, FleetCollector
from controlplane_api.api.views import Sources
from controlplane_api.database import Database
from controlplane_api.models import Source, Sync
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.states import Coverage, Proof, StartKind
from controlplane_api.syncs import Start, start_tables
from controlplane_api.verification_schedules import Schedule, put
from gateway.registry import SourceKey
from tests.controlplane_api import facts
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.lake_facts import Sink
from tests.controlplane_api.verdict_facts import verdict
from tests.stack import http_client

SHOP = '{source="shop",tenant="acme"}'


@pytest.fixture
def client(database: Database) -> Iterator[httpx.Client]:
    with serving(database) as url, http_client(url) as client:
        yield client


def scraped(client: httpx.Client) -> dict[str, float]:
    text = client.get("/metrics").text
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def test_metrics_when_an_agent_tells_its_figures_then_they_are_its_sources(
    client: httpx.Client, registry: SqlRegistry
) -> None:
    facts.record_shop(registry)
    told = replace(
        facts.health(lag_us=0), decode_cpu_us=1_500_000, restarts=2, credit_bytes=64, log_retention_seconds=3600
    )
    facts.record_heartbeat(registry, "acme", "agent-1", 50 << 20, 2_000_000, [told], facts.fresh_us())
    found = scraped(client)
    of_agent = '{agent="agent-1",tenant="acme"}'
    assert found[f"menura_agent_resident_memory_bytes{of_agent}"] == 50 << 20
    assert found[f"menura_agent_cpu_seconds_total{of_agent}"] == 2
    assert found[f"menura_agent_connected{of_agent}"] == 1
    assert found[f"menura_agent_lag_seconds{SHOP}"] == 0
    assert found[f"menura_agent_decode_cpu_seconds_total{SHOP}"] == 1.5
    assert found[f"menura_agent_restarts_total{SHOP}"] == 2
    assert found[f"menura_agent_log_retention_seconds{SHOP}"] == 3600
    assert f"menura_agent_log_room_bytes{SHOP}" not in found  # not known
    assert f"menura_agent_log_unlimited{SHOP}" not in found
    for is_unlimited in (True, False):
        told = replace(told, log_retention_seconds=None, log_is_unlimited=is_unlimited)
        facts.record_heartbeat(registry, "acme", "agent-1", 50 << 20, 2_000_000, [told], facts.fresh_us())
        assert scraped(client)[f"menura_agent_log_unlimited{SHOP}"] == is_unlimited
    assert found["process_resident_memory_bytes"] > 0
    assert found['menura_upgrade_halted{tenant="acme"}'] == 0  # also where no rollout ever was


def test_metrics_when_an_agent_tells_nonsense_then_names_and_numbers_stay_ours(
    client: httpx.Client, registry: SqlRegistry
) -> None:
    facts.record_shop(registry)
    told = replace(facts.health(lag_us=MAX_INT64), restarts=MAX_INT64, source_position='x"} 1\nevil 2')
    facts.record_heartbeat(registry, "acme", "agent-1", MAX_INT64, MAX_INT64, [told], facts.fresh_us())
    found = scraped(client)
    ours = {figure.name for figure in FIGURES}
    own = {name for name in found if not name.startswith(("process_", "menura_disk_"))}
    assert {re.split(r"[{]", name)[0] for name in own} <= ours
    assert not [name for name in found if "evil" in name]


def test_metrics_when_there_are_more_sources_and_agents_than_are_shown_then_their_number_is_told(
    client: httpx.Client, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts.record_shop(registry)
    before = scraped(client)
    assert before['menura_controlplane_unshown{what="sources"}'] == 0
    monkeypatch.setattr(metrics, "MAX_SOURCES", 0)
    monkeypatch.setattr(metrics, "MAX_AGENTS", 0)
    found = scraped(client)
    assert found['menura_controlplane_unshown{what="sources"}'] == 1
    assert found['menura_controlplane_unshown{what="agents"}'] == 1
    assert not [name for name in found if "shop" in name or "agent-1" in name]


def lags(database: Database) -> set[str]:
    """The tenants whose sources have one, read without a server in between."""
    samples = [sample for metric in FleetCollector(database).collect() for sample in metric.samples]
    return {sample.labels["tenant"] for sample in samples if sample.name == "menura_agent_lag_seconds"}


def test_metrics_when_reading_them_takes_long_then_a_later_tenants_lag_is_that_of_the_same_moment(
    database: Database, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = facts.fresh_us()
    for tenant in ("acme", "globex"):
        facts.record_shop(registry, key=SourceKey(tenant, "shop"))
        facts.record_heartbeat(registry, tenant, "agent-1", 1, 1, [facts.health(lag_us=0)], begun)
    clock = count(begun, 60_000_000)
    for module in (metrics, source_queries):
        monkeypatch.setattr(module, "now_us", lambda: next(clock))
    assert lags(database) == {"acme", "globex"}


def test_metrics_when_there_are_more_sources_than_are_shown_then_the_others_are_not_read(
    database: Database, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tenant in ("acme", "globex"):
        facts.record_shop(registry, key=SourceKey(tenant, "shop"))
        facts.record_heartbeat(registry, tenant, "agent-1", 1, 1, [facts.health(lag_us=0)], facts.fresh_us())
    read: list[str] = []
    of_tenant = source_queries.sources

    def sources(connection: Connection, tenant: str, *, limit: int, now: int) -> Sources:
        read.append(tenant)
        return of_tenant(connection, tenant, limit=limit, now=now)

    monkeypatch.setattr(metrics, "MAX_SOURCES", 1)
    monkeypatch.setattr(source_queries, "sources", sources)
    assert (lags(database), read) == ({"acme"}, ["acme"])


def test_metrics_when_tables_of_many_sources_are_verified_then_one_statement_finds_what_each_source_shows(
    database: Database, registry: SqlRegistry
) -> None:
    now, shops = now_us(), [("acme", "factory"), ("acme", "shop"), ("globex", "shop")]
    old, late = now - 10 * 86_400_000_000, now - 7_200_000_000
    for key in shops:
        facts.record_shop(registry, key=SourceKey(*key))
    told = [
        verdict(number, kind, table, tenant=tenant, source=source, read_at_us=at_us, at_us=at_us)
        for tenant, source in shops[:2]
        for number, (kind, table, at_us) in enumerate(
            [("equal", "orders", late), ("equal", "items", old), ("differs", "items", late)], 1
        )
    ]
    Sink().tell(database, verdicts=tuple(told))
    with database.write() as connection:
        for row in connection.execute(select(Source.id, Source.name)).all():
            asked = [("shop", "orders"), ("shop", "items"), ("shop", "notes")]
            start_tables(connection, row.id, asked[: 3 if row.name == "shop" else 1], Start(StartKind.OLDEST))
            connection.execute(update(Sync).where(Sync.source_id == row.id).values(start=None))
        put(connection, row.id, Schedule(3_600), now)
    with database.read() as connection:
        found = coverage_queries.of_first_sources(connection, 3, now)
        assert found.keys() == {*shops}
        for key, known in found.items():
            shown = coverage_queries.coverage(connection, *key)
            assert (known.covered, known.rows) == (shown.tables, shown.rows), key
            assert bool(known.proven_at_us) == (shown.oldest_proof_age_us is not None), key
        assert found["acme", "factory"].covered == dict.fromkeys(Coverage, 0) | {Coverage.PROVEN: 1}
        assert found["acme", "shop"].tables == dict.fromkeys(Proof, 0) | {
            Proof.EQUAL: 1, Proof.DIFFERS: 1, Proof.NEVER: 1,
        }  # fmt: skip
        assert min(found["acme", "shop"].proven_at_us) == old
        assert coverage_queries.of_first_sources(connection, 1, now).keys() == {shops[0]}
