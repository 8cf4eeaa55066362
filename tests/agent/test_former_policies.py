"""What an agent tells of columns that the host's policy keeps back, and gives free: no name, and none is forgotten."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from menura.v1 import changes_pb2, config_pb2
from menura.v1.catalog_pb2 import ColumnCard, TableCard

from agent.errors import StateFolderUnusable
from agent.filter import Filter
from agent.runtime import former_policies
from agent.runtime.former_policies import FormerPolicies
from agent.veto.local_policy import GivenPolicy, LocalPolicy, SourceVeto
from agent.veto.policy import Pattern, Policy, Rule, Subject
from tests.agent.gateway_double import GatewayDouble
from tests.agent.memory import COLUMNS, ORDERS, config, create, database, gateway, order
from tests.agent.policed import Host, agent_with
from tests.agent.test_replication import last_state, stops
from tests.memory_source.database import Change, Column, Definition, MemoryDatabase, Row

__all__ = ["database", "gateway"]

PIN = Column("canary_pin", "u")
OPEN = "default: open\n"
WITHOUT = "default: open\ndatabases: {shop: {orders: {ignored_columns: [canary_pin]}}}\n"
LISTED = "default: closed\ndatabases: {shop: {orders: {columns: [id, name, paid, gift]}}}\n"
DENIED = "default: open\ndatabases: {shop: {orders: denied}}\n"
EVERYWHERE = 'default: open\ndatabases: {shop: {"*": {ignored_columns: [nowhere]}}}\n'


def withheld(gateway: GatewayDouble) -> config_pb2.Withheld:
    found = last_state(gateway, ORDERS)
    return found.withheld if found is not None else config_pb2.Withheld()


@contextmanager
def streaming(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path, policy: str, columns: tuple[Column, ...]
) -> Iterator[Host]:
    if ORDERS not in database.tables:
        create(database, columns=columns)
        database.commit(Change(ORDERS, None, row(database, 3)))
        gateway.sync("shop", ORDERS, oldest=True)
    with agent_with(config(tmp_path, gateway.address), policy) as host:
        yield host


def row(database: MemoryDatabase, key: int) -> Row:
    more = [column.name for column in database.tables[ORDERS].columns[len(COLUMNS) :]]
    return order(key, "row") | dict.fromkeys(more, "1234")


def put(database: MemoryDatabase, gateway: GatewayDouble, key: int) -> None:
    """One more row, which has come."""
    database.commit(Change(ORDERS, None, row(database, key)))
    gateway.wait(lambda: any(found["id"] == key for found in gateway.rows("shop", ORDERS)))


@pytest.mark.parametrize("before", [WITHOUT, LISTED], ids=["ignored", "not listed"])
def test_column_when_the_policy_gives_it_free_then_that_is_told_and_no_name_was_before(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path, before: str
) -> None:
    with streaming(database, gateway, tmp_path, before, (*COLUMNS, PIN)) as host:
        gateway.wait(lambda: withheld(gateway).columns)
        first = withheld(gateway)
        assert first.memory and first.freed == 0
        said = [message for message in gateway.messages if b"canary" in message]
        assert said == []
        host.policy(OPEN)
        gateway.wait(lambda: withheld(gateway).freed == 1)
        assert (withheld(gateway).memory, withheld(gateway).columns) == (first.memory, False)
        put(database, gateway, 50)
    assert gateway.rows("shop", ORDERS)[-1]["canary_pin"] == "1234"


def test_column_when_it_is_free_once_the_agent_starts_again_then_that_is_told(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    with streaming(database, gateway, tmp_path, WITHOUT, (*COLUMNS, PIN)):
        gateway.wait(lambda: withheld(gateway).columns)
        memory = withheld(gateway).memory
    for _ in range(2):  # and it is told again, not counted again
        with streaming(database, gateway, tmp_path, OPEN, ()):
            gateway.wait(lambda: withheld(gateway) == config_pb2.Withheld(memory=memory, freed=1))
            put(database, gateway, 50 + len(gateway.rows("shop", ORDERS)))


def test_column_when_the_table_gets_it_while_it_stays_then_its_freedom_is_told_and_one_that_comes_later_is_not(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    policy = LISTED.replace("closed", "open")
    with streaming(database, gateway, tmp_path, policy, COLUMNS) as host:
        gateway.wait(lambda: withheld(gateway).columns)
        host.policy(OPEN)
        gateway.wait(lambda: not withheld(gateway).columns)
        database.commit(Definition(ORDERS, changes_pb2.TableEvent.ALTERED, (*COLUMNS, PIN)))
        put(database, gateway, 50)
        assert withheld(gateway).freed == 0, "no row lacks a column that was not there"
        host.policy(policy)
        gateway.wait(lambda: withheld(gateway).columns)
        database.commit(Definition(ORDERS, changes_pb2.TableEvent.ALTERED, (*COLUMNS, PIN, Column("more", "u"))))
        put(database, gateway, 51)
        host.policy(OPEN)
        gateway.wait(lambda: withheld(gateway).freed == 1)


def test_policies_when_nothing_that_is_there_becomes_free_then_nothing_is_told(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    with streaming(database, gateway, tmp_path, OPEN, (*COLUMNS, PIN)) as host:
        gateway.wait(lambda: len(gateway.rows("shop", ORDERS)) == 1)
        assert withheld(gateway) == config_pb2.Withheld()
        host.policy(EVERYWHERE)
        gateway.wait(lambda: withheld(gateway).columns)
        memory = withheld(gateway).memory
        host.policy(f"# moved by a line\n{WITHOUT}")
        put(database, gateway, 50)
        host.policy(LISTED)
        put(database, gateway, 51)
        gateway.wait(lambda: withheld(gateway) == config_pb2.Withheld(memory=memory, columns=True, freed=0))
        put(database, gateway, 52)
    assert (withheld(gateway).memory, withheld(gateway).freed) == (memory, 0)


def test_table_when_it_was_denied_between_then_a_column_that_stayed_before_is_told(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    with streaming(database, gateway, tmp_path, WITHOUT, (*COLUMNS, PIN)) as host:
        gateway.wait(lambda: withheld(gateway).columns and gateway.rows("shop", ORDERS))
        host.policy(DENIED)
        gateway.wait(lambda: stops(gateway, ORDERS) and not gateway.source("shop").existing())
        host.policy(OPEN)
        gateway.wait(lambda: gateway.source("shop").existing())
        gateway.sync("shop", ORDERS)
        gateway.wait(lambda: withheld(gateway).freed > 0)


def test_memory_when_it_is_lost_or_broken_then_another_one_begins(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    seen = set()
    for harm in (None, Path.unlink, lambda path: path.write_text("{}")):
        for path in tmp_path.rglob("shop.policies.json"):
            if harm is not None:
                harm(path)
        with streaming(database, gateway, tmp_path, WITHOUT, (*COLUMNS, PIN)):
            gateway.wait(lambda: withheld(gateway).memory not in {*seen, ""})
            seen.add(withheld(gateway).memory)
    (path,) = tmp_path.rglob("shop.policies.json")
    assert path.stat().st_mode & 0o077 == 0


def rule(*ignored: str, **facts: object) -> Rule:
    return replace(Rule(1, Pattern("shop"), Pattern("orders"), True, None, ignored), **facts)


def memory_of(folder: Path, *rules: Rule) -> FormerPolicies:
    veto = SourceVeto(GivenPolicy(Policy("policy.yaml", rules=rules)), Subject("shop"))
    return FormerPolicies(Filter(veto=veto), folder, "shop")


def look(memory: FormerPolicies, *columns: str) -> int:
    card = TableCard(columns=[ColumnCard(name=name) for name in columns])
    card.table.database, card.table.table = ORDERS
    assert [each.table.table for each in memory.compared([card])] == ["orders"]
    memory.settle()
    return memory.withheld(ORDERS).freed


def test_policies_when_several_were_in_force_before_a_look_then_none_is_forgotten(tmp_path: Path) -> None:
    """Each agent is killed before its first look."""
    memory_of(tmp_path).reads()
    assert not list(tmp_path.iterdir()), "who has no policy with columns keeps nothing"
    for ignored in ("a", "b", "c"):
        memory_of(tmp_path, rule(ignored)).reads()
    memory = memory_of(tmp_path)
    assert look(memory, "id", "a") == 0, "the log is not read under the new policy yet: older rows may be on their way"
    memory.reads()
    assert look(memory, "id", "b") == 1
    assert look(memory, "id", "b") == 1
    assert memory.is_settled


def test_look_when_reading_begins_under_another_policy_meanwhile_then_another_look_compares(tmp_path: Path) -> None:
    memory_of(tmp_path, rule("a")).reads()
    memory, looks = memory_of(tmp_path), []
    memory.on_due = lambda: looks.append("due")
    cards = memory.compared([TableCard(columns=[ColumnCard(name="a")])])
    assert len(list(cards)) == 1
    memory.reads()
    assert not memory.settle() and not memory.is_settled and looks == ["due"]
    half = memory.compared([TableCard(), TableCard()])
    next(half)
    assert not memory.settle(), "a look that has failed half-way"
    assert look(memory, "a") == 1


def test_policy_when_the_same_is_read_again_before_the_look_then_the_look_compares_all_the_same(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.touch(0o600)
    file.write_text(WITHOUT)
    local = LocalPolicy.read(file)
    memory = FormerPolicies(Filter(veto=local.of(Subject("shop"))), tmp_path / "state", "shop")
    memory.reads()
    file.write_text(OPEN)
    assert local.read_again()
    memory.reads()
    assert not local.read_again(), "no stream begins anew for that"
    assert look(memory, "id", "canary_pin") == 1 and memory.is_settled


def test_policies_when_there_are_too_many_then_another_memory_begins_and_so_it_is_noticed(tmp_path: Path) -> None:
    memory = memory_of(tmp_path, rule("a"))
    memory.reads()
    identity = memory.withheld(ORDERS).memory
    for number in range(former_policies.MOST_POLICIES):
        memory_of(tmp_path, rule("a", f"c{number}")).reads()
    other = memory_of(tmp_path).withheld(ORDERS)
    assert other.memory != identity and other.columns


def test_memory_of_the_first_format_when_it_is_read_then_it_is_the_one_that_was_written(tmp_path: Path) -> None:
    former = rule("pin", only=("id", "pin"), sources=("shop",), renamed_from=("shop.old",))
    memory = memory_of(tmp_path, former, Rule(2, Pattern("h*"), Pattern("*"), False))
    memory.reads()
    written = (tmp_path / "shop.policies.json").read_text()
    assert '"format": 1' in written
    again = memory_of(tmp_path, former, Rule(9, Pattern("h*"), Pattern("*"), False))
    again.reads()
    assert again.is_settled and (tmp_path / "shop.policies.json").read_text() == written


def test_memory_when_it_cannot_be_written_then_nothing_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "file"
    folder.write_text("")
    with pytest.raises(StateFolderUnusable):
        memory_of(folder, rule("a")).reads()
