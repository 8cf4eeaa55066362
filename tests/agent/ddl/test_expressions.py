"""What definitions say of generated columns' expressions, of ZEROFILL and of how much a text holds, on real servers."""

import pytest

from agent.sources.mysql.ddl.model import ColumnDefinition
from tests.agent.ddl.tracking import Tracking
from tests.servers import Flavor

FLAVORS = ["mysql", "mariadb"]


def column(tracked: Tracking, name: str = "g") -> ColumnDefinition:
    definition = tracked.catalog.tables["t", "e"]
    assert definition is not None
    return next(column for column in definition.columns if column.name == name)


@pytest.mark.parametrize("flavor", FLAVORS)
def test_expression_when_it_is_said_again_then_it_is_the_same_and_another_one_is_not(
    both: dict[Flavor, Tracking], flavor: Flavor
):
    tracked = both[flavor]
    tracked.reset()
    tracked.run("CREATE TABLE e (x INT, y VARCHAR(9), g INT AS (x + 1) VIRTUAL)")
    first = column(tracked).expression
    found = []
    for said in ("`x`+1", "x + 2", "x + 1 /* again */"):
        assert not tracked.run(f"ALTER TABLE e DROP g, ADD g INT AS ({said}) VIRTUAL").differences
        found.append(column(tracked).expression)

    assert found[0] != found[1] != first != ""
    assert found[2] == first


@pytest.mark.parametrize("flavor", FLAVORS)
def test_expression_when_sql_modes_give_its_signs_other_meanings_then_it_is_another(
    both: dict[Flavor, Tracking], flavor: Flavor
):
    tracked = both[flavor]
    found = []
    for mode in ("", "PIPES_AS_CONCAT", ""):
        tracked.reset()
        tracked.run(f"SET sql_mode = '{mode}'")
        assert not tracked.run("CREATE TABLE e (x INT, g INT AS (x || 2) VIRTUAL)").differences
        found.append(column(tracked).expression)

    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize("flavor", FLAVORS)
def test_expression_when_the_server_shows_it_then_it_is_always_the_same(both: dict[Flavor, Tracking], flavor: Flavor):
    tracked = both[flavor]
    tracked.reset()
    tracked.run("CREATE TABLE e (x INT, g INT AS (x + 1) VIRTUAL, h INT AS (x + 2) VIRTUAL)")
    by_statement = column(tracked).expression
    shown = []
    for _ in range(2):
        tracked.catalog = type(tracked.catalog)(tracked.read(), tracked.catalog.databases)
        shown.append((column(tracked).expression, column(tracked, "h").expression, column(tracked, "x").expression))

    assert shown[0] == shown[1]
    assert len({by_statement, *shown[0]}) == 4, "a statement's words are never those that the server shows"


@pytest.mark.parametrize("flavor", FLAVORS)
def test_definitions_when_numbers_are_zerofilled_and_texts_have_sizes_then_they_say_so(
    both: dict[Flavor, Tracking], flavor: Flavor
):
    tracked = both[flavor]
    tracked.reset()
    outcome = tracked.run(
        "CREATE TABLE e (g INT(4) ZEROFILL, h INT UNSIGNED, a TEXT(60) CHARACTER SET utf8mb4, b BLOB(300), "
        "c MEDIUMTEXT, d LONGBLOB, e TINYTEXT, f TEXT CHARACTER SET latin1)"
    )
    assert not outcome.refused and not outcome.differences
    assert (column(tracked).zerofill, column(tracked, "h").zerofill) == (True, False)
    assert [column(tracked, name).length for name in "abcdef"] == [255, 65535, 16777215, 4294967295, 255, 65535]

    assert not tracked.run("ALTER TABLE e CONVERT TO CHARACTER SET utf8mb4").differences
    assert [column(tracked, name).length for name in "acef"] == [255, 16777215, 255, 16777215]
