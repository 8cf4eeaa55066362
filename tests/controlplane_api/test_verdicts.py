"""What sinks find by verifications, in the control plane: kept within bounds, shown to its tenant, and to scripts."""

import json
from dataclasses import replace
from typing import Any

import pytest
from alembic import command
from menura.instants import now_us
from menura.lake_report import LakeReportError, decode_report, encode_report
from sqlalchemy import select

from controlplane_api import verdicts as verdicts_module
from controlplane_api.api import verdict_queries
from controlplane_api.database import Database
from controlplane_api.lakes import forget_lake
from controlplane_api.migrating import alembic_config, upgrade
from controlplane_api.models import ProofOfTable, Verdict
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.states import Proof
from controlplane_api.verdicts import KEPT
from tests.controlplane_api.commands import menura
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.lake_facts import Sink
from tests.controlplane_api.test_api import SHOP
from tests.controlplane_api.test_dump_api import stream_orders
from tests.controlplane_api.verdict_facts import LEAF, verdict
from tests.stack import http_client


def known(database: Database, tenant: str = "acme") -> dict[Any, verdict_queries.Known]:
    with database.read() as connection:
        return verdict_queries.of_tables(connection, tenant, "shop")


def orders(database: Database) -> verdict_queries.Known:
    return known(database)["shop", "orders"]


def numbers(database: Database) -> list[str]:
    with database.read() as connection:
        return list(connection.execute(select(Verdict.verification).order_by(Verdict.id)).scalars())


def test_report_when_it_has_verdicts_then_they_come_as_they_were_told_and_none_beyond_its_limits() -> None:
    told = (verdict(1), verdict(2, "differs"), verdict(3, "void", position="", read_at_us=0))
    report = Sink().report(0, verdicts=told)
    assert decode_report(encode_report(report)) == report
    for wrong in (
        {"verdict": "fine"}, {"leaves": (LEAF,) * 21}, {"reason": "x" * 1_001}, {"position": "x" * 2_049},
        {"source_rows": -1}, {"tenant": "../other"}, {"verification": ""},
        {"leaves": (replace(LEAF, lower="x" * 129),)},
    ):  # fmt: skip
        with pytest.raises(LakeReportError):
            decode_report(encode_report(Sink().report(0, verdicts=(replace(verdict(1), **wrong),))))


def test_report_when_it_is_of_a_sink_without_verdicts_then_it_is_read() -> None:
    facts = json.loads(encode_report(Sink().report(0)))
    del facts["verdicts"]
    assert decode_report(json.dumps(facts).encode()).verdicts == ()


def test_verdicts_when_they_are_told_again_then_stay_as_they_are(database: Database) -> None:
    sink = Sink()
    sink.tell(database, verdicts=(verdict(1), verdict(2, "differs")))
    assert orders(database).state is Proof.DIFFERS
    again = (verdict(1), verdict(2, "differs"), verdict(3))
    sink.tell(database, base=0, verdicts=again)
    assert numbers(database) == ["orders-1", "orders-2", "orders-3"]
    assert orders(database).state is Proof.EQUAL


def test_verdicts_when_what_follows_can_not_tell_then_a_difference_stays_and_so_does_the_proof(
    database: Database,
) -> None:
    sink = Sink()
    sink.tell(database, verdicts=(verdict(1), verdict(2, "void")))
    assert (orders(database).state, orders(database).proof.verification) == (Proof.UNKNOWN, "orders-1")
    sink.tell(database, verdicts=(verdict(3, "differs"), verdict(4, "unknown")))
    assert (orders(database).state, orders(database).newest.verdict) == (Proof.DIFFERS, "unknown")


def test_verdicts_when_there_are_many_then_the_last_stay_and_the_newest_of_both_kinds(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Sink()
    sink.tell(database, verdicts=(verdict(1), verdict(2), verdict(3, "differs"), verdict(1, table="items")))
    sink.tell(database, verdicts=tuple(verdict(number, "void") for number in range(4, 5 + KEPT)))
    left = numbers(database)
    assert left == ["orders-2", "orders-3", "items-1", *(f"orders-{number}" for number in range(5, 5 + KEPT))]
    monkeypatch.setattr(verdicts_module, "MAX_OF_LAKE", 4)
    sink.tell(database, verdicts=(verdict(99),))
    assert numbers(database) == ["orders-12", "orders-13", "orders-14", "orders-99"]


def test_verdicts_when_a_clock_is_ahead_then_no_proof_is_younger_than_its_report(database: Database) -> None:
    told_us = now_us()
    Sink().tell(database, at_us=told_us, verdicts=(verdict(1, read_at_us=told_us + 10**12, at_us=told_us + 10**12),))
    assert orders(database).proof.proven_at_us == told_us


def test_verdicts_when_two_lakes_have_the_table_then_the_worse_one_counts_until_it_is_forgotten(
    database: Database,
) -> None:
    Sink("one").tell(database, verdicts=(verdict(1, "differs"),))
    Sink("two").tell(database, verdicts=(verdict(1),))
    assert (orders(database).state, orders(database).newest.lake) == (Proof.DIFFERS, "one")
    with database.write() as connection:
        forget_lake(connection, "one")
    assert (orders(database).state, orders(database).newest.lake) == (Proof.EQUAL, "two")


def test_migration_when_verdicts_are_there_then_what_is_known_of_each_table_is_as_reports_make_it(
    database: Database,
) -> None:
    one, two = Sink("one"), Sink("two")
    one.tell(
        database, verdicts=(verdict(1), verdict(2, "void"), verdict(1, "differs", "items"), verdict(2, "void", "notes"))
    )
    two.tell(database, verdicts=(verdict(3), verdict(4, table="items"), verdict(1, tenant="other")))
    config = alembic_config()
    with database.write() as connection:
        told = connection.execute(select(ProofOfTable).order_by(ProofOfTable.newest_id)).all()
        config.attributes["connection"] = connection
        command.downgrade(config, "0032")
        upgrade(connection)
        assert connection.execute(select(ProofOfTable).order_by(ProofOfTable.newest_id)).all() == told
    assert [(row.name, row.state) for row in told if row.tenant == "acme"] == [
        ("orders", "unknown"), ("items", "differs"), ("notes", "unknown"),
    ]  # fmt: skip


def test_verdicts_when_another_tenant_asks_then_it_sees_none(database: Database) -> None:
    Sink().tell(database, verdicts=(verdict(1), verdict(1, tenant="other", verification="theirs")))
    assert [found.newest.verification for found in known(database, "other").values()] == ["theirs"]
    assert known(database, "third") == {}


@pytest.mark.parametrize("kind", ["sqlite"])
def test_clients_when_tables_were_verified_then_see_what_is_known_and_scripts_have_an_exit_code(
    database: Database, registry: SqlRegistry
) -> None:
    sink = Sink()
    at_us = now_us() - 5_460_000_000
    with serving(database) as url, http_client(url) as client:
        environment = {"MENURA_API": url, "MENURA_TENANT": "acme"}
        stream_orders(client, registry)
        (found,) = client.get(f"{SHOP}/proofs").json()["proofs"]
        assert (found["table"], found["state"], found["verdict"], found["proof"]) == ("orders", "never", None, None)
        done = menura("verify", "report", "shop", **environment)
        assert (done.returncode, "never" in done.stdout) == (32, True)

        sink.tell(database, verdicts=(verdict(1, read_at_us=at_us, at_us=at_us),))
        done = menura("verify", "report", "shop", **environment)
        assert done.returncode == 0, done.stderr
        assert "equal to the source at gtid:1-1, 1.5 h ago, 40,000 rows" in done.stdout
        assert menura("verify", "report", "shop", "shop.orders", "--within", "10m", **environment).returncode == 32
        assert menura("verify", "report", "shop", "--within", "1d", **environment).returncode == 0
        metrics = client.get("/metrics").text
        assert 'menura_verification_tables{source="shop",state="equal",tenant="acme"} 1.0' in metrics
        assert 'menura_verification_oldest_proof_age_seconds{source="shop",tenant="acme"} 5' in metrics

        sink.tell(database, verdicts=(verdict(2, "differs"),))
        done = menura("verify", "report", "shop", "--json", **environment)
        assert done.returncode == 31
        (shown,) = json.loads(done.stdout)["proofs"]
        assert (shown["state"], shown["proof"]["verification"]) == ("differs", "orders-1")
        assert shown["verdict"]["leaves"] == [
            {"lower": "16384", "upper": "32768", "source_rows": 16_384, "lake_rows": 16_383, "key": "", "columns": ""}
        ]
        done = menura("verify", "report", "shop", "shop.orders", **environment)
        assert "keys above 16384 up to 32768 (16,384 rows at the source, 16,383 in the lake)" in done.stdout

        of_orders = f"{SHOP}/tables/shop/orders"
        first = client.get(f"{of_orders}/verdicts?limit=1").json()
        second = client.get(f"{of_orders}/verdicts?limit=1&cursor={first['next_cursor']}").json()
        assert [page["verdicts"][0]["verification"] for page in (first, second)] == ["orders-2", "orders-1"]
        assert second["next_cursor"] is None
        assert client.get(f"{SHOP}/tables/shop/nothing/proof").json()["code"] == "TABLE_UNKNOWN"
        assert client.get(f"{SHOP}/tables/shop/items/proof").json()["state"] == "never"
        assert client.get(f"{SHOP}/proofs".replace("acme", "other")).status_code == 404


@pytest.mark.parametrize("kind", ["sqlite"])
def test_followers_when_a_verdict_comes_then_get_it_once_and_go_on_behind_the_last(
    database: Database, registry: SqlRegistry
) -> None:
    sink = Sink()
    with serving(database) as url, http_client(url) as client:
        stream_orders(client, registry)
        sink.tell(database, verdicts=(verdict(1),))
        with client.stream("GET", f"{SHOP}/verdicts/events", headers={"last-event-id": "0"}) as answer:
            lines = answer.iter_lines()
            assert next(line for line in lines if line.startswith("event:")) == "event: equal"
            data = next(line for line in lines if line.startswith("data:"))
            assert json.loads(data.removeprefix("data: "))["table"] == "orders"
            sink.tell(database, verdicts=(verdict(2, "differs"), verdict(1, tenant="other")))
            assert next(line for line in lines if line.startswith("event:")) == "event: differs"
