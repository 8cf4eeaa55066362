"""What changes of definitions may not do: fill a cut beyond what a gateway takes, or bring a batch a name of ours."""

from pathlib import Path

import pytest

from agent.capture import cuts
from tests.agent.dumping import agent_inside
from tests.agent.gateway_double import GatewayDouble
from tests.agent.running import running_agent
from tests.agent.test_replication import config, stops, wait_equal
from tests.servers import Server

COLUMNS = 100
CHANGES = 60
MOST_BYTES = 200_000


def test_events_when_they_do_not_fit_one_cut_then_several_carry_them(
    database: Server, gateway: GatewayDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cuts.MAX_EVENTS_BYTES > MOST_BYTES
    monkeypatch.setattr(cuts, "MAX_EVENTS_BYTES", MOST_BYTES)
    columns = ", ".join(f"`a column with a name of some length, number {number}` TINYINT" for number in range(COLUMNS))
    database.run(f"CREATE TABLE shop.wide ({columns})")
    database.run(*[f"ALTER TABLE shop.wide COMMENT '{number}'" for number in range(CHANGES)])
    gateway.sync("shop", ("shop", "wide"), oldest=True)
    with agent_inside(config(tmp_path, gateway, database)):
        committed = gateway.source("shop").committed
        gateway.wait(lambda: sum(len(cut.events) for cut in committed) == CHANGES + 1)
    sizes = [sum(event.ByteSize() for event in cut.events) for cut in committed]
    assert sum(sizes) > MOST_BYTES
    assert max(sizes) <= MOST_BYTES


def test_column_when_an_alter_gives_it_a_name_of_ours_then_it_has_another_one_on_the_way(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    reserved = ("shop", "reserved")
    database.run("CREATE TABLE shop.reserved (id INT PRIMARY KEY)", "INSERT INTO shop.reserved VALUES (1)")
    gateway.sync("shop", reserved, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        wait_equal(gateway, database, reserved)
        database.run("ALTER TABLE shop.reserved ADD _menura_x INT, ADD `%5Fgsn` INT, ADD _GSN INT")
        database.run("INSERT INTO shop.reserved VALUES (2, 3, 4, 5)")
        gateway.wait(lambda: len(gateway.rows("shop", reserved)) == 2)
        *_, event = [event for cut in gateway.source("shop").committed for event in cut.events if event.columns]
        assert [column.name for column in event.columns] == ["id", "_menura_x", "%5Fgsn", "_GSN"]
        assert not stops(gateway, reserved)
    row = gateway.rows("shop", reserved)[1]
    assert {"id": 2, "%5Fmenura_x": 3, "%255Fgsn": 4, "%5FGSN": 5}.items() <= row.items()
