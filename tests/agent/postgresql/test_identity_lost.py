"""Published tables whose rows nothing identifies any more: their server refuses changes, and the source says so."""

import re
from pathlib import Path

import psycopg
import pytest
from menura.errors import one_line

from agent.sources.postgresql.server.checks import advice
from tests.agent.gateway_double import GatewayDouble
from tests.agent.postgresql.sources import SOURCE, config_of
from tests.agent.postgresql.streaming import (
    ORDERS,
    begin,
    create,
    current,
    looks_often,
    run,
    selected,
    stopped,
    streaming,
)
from tests.postgres import SourceServer

#: how the identity goes
LOST = {
    "key": "ALTER TABLE orders DROP CONSTRAINT orders_pkey",
    "nothing": "ALTER TABLE orders REPLICA IDENTITY NOTHING",
    "index": "ALTER TABLE orders ALTER name SET NOT NULL; CREATE UNIQUE INDEX named ON orders (name);"
    " ALTER TABLE orders REPLICA IDENTITY USING INDEX named; DROP INDEX named",
}


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    looks_often(monkeypatch)


def warnings(gateway: GatewayDouble) -> dict[str, str]:
    """Of the source's newest state, by code."""
    states = gateway.source(SOURCE).effective
    return {warning.code: one_line(warning) for warning in states[-1].warnings} if states else {}


@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
def test_identity_when_a_published_table_loses_it_then_the_source_warns_and_the_statement_of_the_message_mends_it(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path, lost: str
) -> None:
    create(postgres, rows=0)
    with streaming(tmp_path, gateway, postgres):
        begin(gateway, ORDERS)
        run(postgres, "INSERT INTO orders VALUES (1, 'a', ''), (2, 'b', '')", *lost.split("; "))
        gateway.wait(lambda: "TABLES_UNIDENTIFIED" in warnings(gateway))
        message = warnings(gateway)["TABLES_UNIDENTIFIED"]
        assert not gateway.source(SOURCE).effective[-1].error.code
        assert "public.orders" in message
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            run(postgres, "UPDATE orders SET note = 'refused'")
        assert [one.code for one in advice(config_of(postgres))] == ["TABLES_UNIDENTIFIED"]
        run(postgres, "INSERT INTO orders VALUES (3, 'c', '')")
        gateway.wait(lambda: (3,) in current(gateway, ORDERS))
        run(postgres, *re.findall(r"ALTER TABLE [^;]*?REPLICA IDENTITY FULL", message))
        gateway.wait(lambda: not warnings(gateway))
        assert advice(config_of(postgres)) == []
        run(postgres, "UPDATE orders SET note = 'taken' WHERE id < 3", "DELETE FROM orders WHERE id = 3")
        gateway.wait(lambda: current(gateway, ORDERS) == selected(postgres, ORDERS))
        assert not stopped(gateway, ORDERS)


def test_warning_when_the_table_is_no_longer_synced_then_it_is_gone(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres)
    with streaming(tmp_path, gateway, postgres):
        begin(gateway, ORDERS)
        run(postgres, LOST["key"])
        gateway.wait(lambda: "TABLES_UNIDENTIFIED" in warnings(gateway))
        gateway.unsync(SOURCE, ORDERS)
        gateway.wait(lambda: "TABLES_UNIDENTIFIED" not in str(gateway.source(SOURCE).effective[-1]))
