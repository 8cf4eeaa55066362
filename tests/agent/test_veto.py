"""What leaves a host that has a policy, with a source in memory: whatever a gateway asks for, and while it changes."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from menura.source_configuration import sha256_of
from menura.v1 import changes_pb2, config_pb2, error_pb2, stream_pb2
from menura.v1.catalog_pb2 import ColumnCard, ForeignKeyCard, KeyCard, TableCard

from agent.filter import Filter, KnownTable, Policy
from agent.server_words import SERVER_WORDS
from agent.sources.mysql.ddl.identifiers import IDENTIFIERS
from agent.sources.mysql.server.foreign_keys import Action, ForeignKey
from agent.sources.mysql.stream.foreign_keys import key_words
from agent.veto.local_policy import LocalPolicy
from agent.veto.outgoing import OutgoingLook, Withheld
from agent.veto.policy import Subject
from tests.agent.gateway_double import GatewayDouble
from tests.agent.memory import COLUMNS, ORDERS, config, create, database, gateway, order
from tests.agent.policed import agent_with
from tests.agent.test_replication import last_state, stops
from tests.memory_source.database import Change, Column, Definition, MemoryDatabase

__all__ = ["database", "gateway"]

_State = config_pb2.TableState
SECRETS, NEW = ("shop", "canary_secrets"), ("shop", "canary_new")
CLOSED = "default: closed\ndatabases: {shop: {orders: {columns: [id, name]}}}\n"
ORDERS_ALL = "default: closed\ndatabases: {shop: {orders: {columns: all}}}\n"
HIDDEN_COLUMNS = (*COLUMNS, Column("canary_pin", "u"))


def state(gateway: GatewayDouble, table: tuple[str, str]) -> tuple[int, str]:
    found = last_state(gateway, table)
    return (found.state, found.error.code) if found is not None else (0, "")


def columns(gateway: GatewayDouble, table: tuple[str, str] = ORDERS) -> list[set[str]]:
    """Of each row, without our own."""
    return [{name for name in row if not name.startswith("_")} for row in gateway.rows("shop", table)]


def test_agent_when_its_host_has_a_closed_policy_then_nothing_else_leaves_by_any_message(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(database, rows=3, columns=HIDDEN_COLUMNS[:4])
    for table in (SECRETS, NEW):
        create(database, table, rows=1)
    for table in (ORDERS, SECRETS):
        gateway.sync("shop", table, oldest=True)
    dump = gateway.dump("shop", "of-secrets", SECRETS)
    with agent_with(config(tmp_path, gateway.address), CLOSED):
        gateway.wait(lambda: len(gateway.rows("shop", ORDERS)) == 3 and dump.failed is not None)
        gateway.wait(lambda: state(gateway, SECRETS) == (_State.DENIED, "POLICY_DENIED"))
        gateway.wait(lambda: gateway.source("shop").existing() == {ORDERS})
        database.commit(Definition(ORDERS, changes_pb2.TableEvent.ALTERED, HIDDEN_COLUMNS))
        database.commit(Change(ORDERS, None, order(99, "after") | {"canary_pin": "1234"}))
        gateway.wait(lambda: len(gateway.rows("shop", ORDERS)) == 4)
    assert dump.failed is not None and dump.failed.code == "POLICY_DENIED"
    assert columns(gateway) == [{"id", "name"}] * 4
    assert {
        column.name for part in gateway.source("shop").cartography for card in part.tables for column in card.columns
    } == {"id", "name"}
    said = [message for message in gateway.messages if b"canary" in message]
    # what it was asked for by name it may answer by name
    assert said and all(b"POLICY_DENIED" in message for message in said)
    assert not any(NEW[1].encode() in message or b"canary_pin" in message for message in said)


def test_policy_when_it_becomes_narrower_then_running_syncs_follow_and_an_unreadable_one_opens_nothing(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(database, rows=1)
    create(database, SECRETS, rows=1)
    for table in (ORDERS, SECRETS):
        gateway.sync("shop", table, oldest=True)
    open_ = "default: open\n"
    with agent_with(config(tmp_path, gateway.address), open_) as host:
        gateway.wait(lambda: len(gateway.rows("shop", ORDERS)) == len(gateway.rows("shop", SECRETS)) == 1)
        host.policy(CLOSED)
        gateway.wait(lambda: stops(gateway, SECRETS))
        database.commit(Change(SECRETS, None, order(6, "kept")), Change(ORDERS, None, order(6, "second")))
        gateway.wait(lambda: len(gateway.rows("shop", ORDERS)) == 2)
        host.policy("default: open\nnonsense: true\n")
        gateway.wait(lambda: "POLICY_UNUSABLE" in warnings(gateway))
        database.commit(Change(SECRETS, None, order(9, "kept")), Change(ORDERS, None, order(9, "third")))
        gateway.wait(lambda: len(gateway.rows("shop", ORDERS)) == 3)
        host.policy(ORDERS_ALL)
        gateway.wait(lambda: "POLICY_UNUSABLE" not in warnings(gateway))
        gateway.wait(lambda: gateway.source("shop").existing() == {ORDERS})
    assert stops(gateway, SECRETS)[0].error.code == "POLICY_DENIED"
    assert columns(gateway) == [{"id", "name", "paid", "gift"}, {"id", "name"}, {"id", "name"}]
    assert len(gateway.rows("shop", SECRETS)) == 1
    assert not any(b"nonsense" in message for message in gateway.messages)


def warnings(gateway: GatewayDouble) -> set[str]:
    effective = gateway.source("shop").effective
    return {error.code for error in effective[-1].warnings} if effective else set()


def test_requests_when_the_policy_grants_them_to_nobody_then_each_is_answered_with_its_refusal(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(database, rows=1)
    gateway.sync("shop", ORDERS, oldest=True)
    dump = gateway.dump("shop", "refused", ORDERS)
    with agent_with(config(tmp_path, gateway.address), "default: open\nrequests: []\n") as host:
        gateway.wait(lambda: state(gateway, ORDERS) == (_State.WAITING, "POLICY_DENIED"))
        gateway.wait(lambda: "POLICY_DENIED" in warnings(gateway))
        assert not gateway.rows("shop", ORDERS) and not gateway.source("shop").cartography
        host.policy("default: open\nrequests: [cartography, changes]\n")
        gateway.wait(lambda: gateway.rows("shop", ORDERS) and gateway.source("shop").existing() == {ORDERS})
        gateway.wait(lambda: dump.failed is not None)
    assert dump.failed is not None and dump.failed.code == "POLICY_DENIED"


def test_sources_when_the_policy_lets_the_control_plane_configure_none_then_those_that_run_end(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(database, rows=1)
    path = config(tmp_path, gateway.address)
    entries = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**entries, "sources": {}, "remote": {}}))
    text = json.dumps({"kind": "memory", "database": "shop"})
    one = config_pb2.SourceConfiguration(source="shop", generation=1, sha256=sha256_of(text), document=text)
    gateway.sync("shop", ORDERS, oldest=True)
    told: list[config_pb2.EffectiveSources] = []

    def last() -> tuple[int, str]:
        found = list(map(stream_pb2.StreamResponse.FromString, list(gateway.messages)))
        told[:] = [each.effective_sources for each in found if each.WhichOneof("payload") == "effective_sources"]
        return (told[-1].sources[0].generation, told[-1].sources[0].error.code) if told else (0, "")

    with agent_with(path, "default: open\n") as host:
        gateway.configure(config_pb2.DesiredSources(digest="one", sources=[one]))
        gateway.wait(lambda: last() == (1, "") and gateway.rows("shop", ORDERS))
        host.policy("default: open\nsources: [other]\n")
        gateway.wait(lambda: last() == (0, "POLICY_DENIED"))
        rows = len(gateway.rows("shop", ORDERS))
        host.policy("default: open\n")
        gateway.wait(lambda: last() == (1, ""))
        database.commit(Change(ORDERS, None, order(99, "again")))
        gateway.wait(lambda: len(gateway.rows("shop", ORDERS)) == rows + 1)


# --- what the filter makes of it, and the second look


def closed(tmp_path: Path, text: str) -> tuple[LocalPolicy, Filter]:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    local = LocalPolicy.read(file)
    subject = Subject("shop", True, IDENTIFIERS.fold, IDENTIFIERS.copied_tables)
    return local, Filter(Policy.ACCEPT, {}, identifiers=IDENTIFIERS, veto=local.of(subject))


def test_filter_when_a_table_was_renamed_then_only_the_policy_itself_lets_it_leave(tmp_path: Path) -> None:
    text = (
        "default: open\ndatabases: {shop: {cards: denied, plain: {columns: all}, people: {ignored_columns: [pin]}}}\n"
    )
    _, found = closed(tmp_path, text)
    found.origins.are({("shop", "plain"): ("shop", "cards"), ("shop", "staff"): ("shop", "people")})
    remote = Filter(
        Policy.ACCEPT, {"plain": ()}, {"plain": ("shop.cards",)}, IDENTIFIERS, found.origins, veto=found.veto
    )
    for filter_ in (found, remote):
        assert not filter_.verdict("shop", "plain").allowed and filter_.is_vetoed(("shop", "plain"))
        card = TableCard(table=config_pb2.TableName(database="shop", table="plain"))
        assert list(found.veto.cards([card], filter_.column_veto)) == []
        error = filter_.denial("shop", "shop", "plain")
        assert error.code == "POLICY_DENIED" and "cards" not in str(error)
    assert found.verdict("shop", "staff").ignores("PIN")
    _, found = closed(tmp_path, text.replace("columns: all", "columns: all, renamed_from: [shop.cards]"))
    found.origins.are({("shop", "plain"): ("shop", "cards")})
    assert found.verdict("shop", "plain").allowed


def test_filter_when_its_rules_name_what_the_policy_keeps_back_then_findings_tell_nothing_of_it(tmp_path: Path) -> None:
    text = "default: open\ndatabases: {shop: {cards: denied, orders: {columns: [id]}}}\n"
    _, found = closed(tmp_path, text)
    rules = {"shop.cards": ("number",), "shop.absent": None, "shop.orders": ("pin",)}
    remote = Filter(Policy.ACCEPT, rules, identifiers=IDENTIFIERS, veto=found.veto)

    def told(*tables: KnownTable) -> list[str]:
        return [str(error).replace("absent", "cards") for error in remote.check(tables, "shop")]

    cards, orders = KnownTable("shop", "cards", ["id"], ["id"]), KnownTable("shop", "orders", ["id", "pin"], ["id"])
    first, second = told(cards, orders)
    assert first == second  # whether it is there makes no difference
    assert told(KnownTable("shop", "orders", ["id"], ["id"])) == [first, second]
    (error,) = list(remote.check([KnownTable("shop", "orders", ["pin"], ["pin"], ["pin"])], "shop"))[2:]
    assert error.code == "POLICY_DENIED" and "pin" not in str(error)
    assert remote.told_columns(("shop", "orders")) == frozenset()


def test_filter_when_a_column_that_the_policy_keeps_back_is_not_there_then_its_table_stays(tmp_path: Path) -> None:
    _, found = closed(tmp_path, "default: open\ndatabases: {shop: {orders: {ignored_columns: [Pin]}}}\n")
    assert found.named() == {"orders"}
    assert found.check([KnownTable("shop", "orders", ["id", "PIN"], ["id"])], "shop") == []
    assert found.verdict("shop", "orders").allowed
    (error,) = found.check([KnownTable("shop", "orders", ["id", "code"], ["id"])], "shop")
    assert error.code == "POLICY_DENIED" and "pin" not in str(error).lower()
    assert not found.verdict("shop", "orders").allowed
    found.findings.dropped = {("shop", "orders"): frozenset({"pin"})}
    assert found.check([KnownTable("shop", "orders", ["id", "code"], ["id"])], "shop") == []


def test_partition_when_the_policy_denies_it_then_its_whole_table_stays(tmp_path: Path) -> None:
    text = "default: closed\ndatabases: {shop: {orders: {columns: all}, orders_eu: denied}}\n"
    _, found = closed(tmp_path, text)
    assert found.verdict("shop", "orders").allowed
    found.veto.parts_are({("shop", "orders"): [("shop", "orders_us")]})
    assert found.verdict("shop", "orders").allowed
    found.veto.parts_are({("shop", "orders"): [("shop", "orders_us"), ("shop", "orders_eu")]})
    assert not found.verdict("shop", "orders").allowed


def test_partition_when_it_comes_in_the_log_then_what_was_before_it_leaves_and_no_dump_does(tmp_path: Path) -> None:
    """The stream opened anew for ever: it met the partition again behind the rows that it was to send."""
    text = "default: closed\ndatabases: {shop: {orders: {columns: [id]}, orders_eu: denied}}\n"
    local, found = closed(tmp_path, text)
    look, orders = OutgoingLook(local).check, config_pb2.TableName(database="shop", table="orders")
    assert found.verdict("shop", "orders").allowed
    found.veto.part_came(("shop", "orders"), ("shop", "orders_eu"))
    assert not found.verdict("shop", "orders").allowed
    event = changes_pb2.TableEvent(table=orders, columns=[{"name": "id"}, {"name": "pin"}])
    cut = stream_pb2.StreamResponse(cut_end=changes_pb2.CutEnd(events=[event], started=[{"table": orders}]))
    for message in (stream_pb2.StreamResponse(change_batch={"table": orders}), cut):
        look("shop", message)
    assert [column.name for column in cut.cut_end.events[0].columns] == ["id"]
    for message in (
        stream_pb2.StreamResponse(snapshot_batch={"table": orders}),
        stream_pb2.StreamResponse(chunk_end={"table": orders}),
        stream_pb2.StreamResponse(cartography={"tables": [TableCard(table=orders)]}),
    ):
        with pytest.raises(Withheld):
            look("shop", message)


def test_partition_when_it_comes_while_another_thread_asks_then_no_former_ruling_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "default: closed\ndatabases: {shop: {orders: {columns: all}, orders_eu: denied}}\n"
    local, found = closed(tmp_path, text)
    found.veto.parts_are({("shop", "orders"): [("shop", "orders_us")]})
    policy = type(local.policy)
    asked = policy.denies_by_name

    def denies(self: Any, *names: Any) -> Any:
        monkeypatch.setattr(policy, "denies_by_name", asked)
        found.veto.part_came(("shop", "orders"), ("shop", "orders_eu"))
        return asked(self, *names)

    monkeypatch.setattr(policy, "denies_by_name", denies)
    found.verdict("shop", "orders")
    assert not found.verdict("shop", "orders").allowed


def test_table_when_it_stays_then_no_names_of_its_columns_are_told(tmp_path: Path) -> None:
    _, found = closed(tmp_path, "default: open\ndatabases: {shop: {salaries: denied}}\n")
    found.findings.unlogged = {("shop", name): frozenset({"bonus_year"}) for name in ("salaries", "orders")}
    assert found.told_columns(("shop", "orders")) == {"bonus_year"}
    assert found.told_columns(("shop", "salaries")) == frozenset()


def test_foreign_key_when_its_parents_column_is_computed_from_what_stays_then_it_is_not_told(tmp_path: Path) -> None:
    _, found = closed(tmp_path, "default: open\ndatabases: {shop: {people: {ignored_columns: [pin]}}}\n")
    child, people = (config_pb2.TableName(database="shop", table=name) for name in ("calls", "people"))
    keys = [
        ForeignKeyCard(name=column, columns=["person"], parent=people, parent_columns=[column])
        for column in ("id", "pin", "of_pin")
    ]
    cards = [
        TableCard(table=child, columns=[ColumnCard(name="person")], foreign_keys=keys),
        TableCard(table=people, columns=[ColumnCard(name="id"), ColumnCard(name="of_pin", ignored=True)]),
    ]
    told = {card.table.table: card for card in found.veto.cards(cards, found.column_veto)}
    assert {name: [key.name for key in card.foreign_keys] for name, card in told.items()} == {
        "calls": ["id"],
        "people": [],
    }


def test_foreign_key_when_the_policy_keeps_back_a_side_of_it_then_no_reason_names_it(tmp_path: Path) -> None:
    text = "default: open\ndatabases: {shop: {salaries: denied, people: {ignored_columns: [pin]}}}\n"
    _, found = closed(tmp_path, text)
    orders = ("shop", "orders")
    for parent, columns in ((("shop", "salaries"), ("id",)), (("shop", "people"), ("pin",))):
        key = ForeignKey("fk_secret", ("payer",), parent, columns, Action.CASCADE)
        assert key_words(key, orders, found) == "a foreign key"
    plain = ForeignKey("fk", ("payer",), ("shop", "people"), ("id",), Action.CASCADE)
    assert key_words(plain, orders, found) == "fk (payer) REFERENCES shop.people"


def test_second_look_when_a_message_says_what_stays_then_it_does_not_leave(tmp_path: Path) -> None:
    local, found = closed(tmp_path, "default: closed\ndatabases: {shop: {orders: {columns: [id, name]}}}\n")
    look = OutgoingLook(local).check
    cards = [
        TableCard(
            table=config_pb2.TableName(database="shop", table=name),
            columns=[ColumnCard(name=column) for column in ("id", "name", "card_no")],
            keys=[KeyCard(name="PRIMARY", columns=["id"]), KeyCard(name="by_card", columns=["card_no"])],
            foreign_keys=[
                ForeignKeyCard(
                    name=f"{column}-{parent}-{parent_column}",
                    columns=["name", column],
                    parent=config_pb2.TableName(database="shop", table=parent),
                    parent_columns=["name", parent_column],
                )
                for column in ("id", "card_no")
                for parent, parent_column in (
                    ("orders", "id"),
                    ("orders", "card_no"),
                    ("salaries", "id"),
                    ("gone", "id"),
                )
            ],
        )
        for name in ("orders", "salaries")
    ]
    withheld_keys = [TableCard(table=cards[0].table, foreign_keys=[key]) for key in cards[0].foreign_keys[1:]]
    (shown,) = found.veto.cards(cards, found.column_veto)
    assert [column.name for column in shown.columns] == ["id", "name"] and [key.name for key in shown.keys] == [
        "PRIMARY"
    ]
    assert [key.name for key in shown.foreign_keys] == ["id-orders-id"]
    look("shop", stream_pb2.StreamResponse(cartography={"tables": [shown]}))
    denied = config_pb2.TableName(database="shop", table="salaries")
    for message in (
        stream_pb2.StreamResponse(change_batch=changes_pb2.ChangeBatch(table=denied)),
        stream_pb2.StreamResponse(cut_end=changes_pb2.CutEnd(events=[changes_pb2.TableEvent(table=denied)])),
        stream_pb2.StreamResponse(cartography={"tables": cards[1:]}),
        *(stream_pb2.StreamResponse(cartography={"tables": [card]}) for card in withheld_keys),
        stream_pb2.StreamResponse(chunk_end={"table": denied, "lower": '["1"]'}),
        stream_pb2.StreamResponse(snapshot_batch={"table": denied}),
        stream_pb2.StreamResponse(
            chunk_end={
                "table": {"database": "shop", "table": "orders"},
                "digest": {"columns": [{"name": "id"}, {"name": "card_no"}]},
            }
        ),
    ):
        with pytest.raises(Withheld):
            look("shop", message)
    orders = config_pb2.TableName(database="shop", table="orders")
    event = changes_pb2.TableEvent(
        table=orders,
        statement="ALTER TABLE orders ADD card_no INT",
        new_name=denied,
        columns=[{"name": "id"}, {"name": "card_no"}, {"name": "name", "renamed_from": "card_no"}],
        foreign_keys=[{"columns": ["id"], "parent": denied, "parent_columns": ["id"]}],
    )
    error = error_pb2.Error(code="SOURCE_FAILED", found="Table 'shop.salaries' is marked as crashed")
    cut = stream_pb2.StreamResponse(cut_end=changes_pb2.CutEnd(events=[event]))
    status = stream_pb2.StreamResponse(dump_status={"reason": "waits for `salaries`"})
    heartbeat = stream_pb2.StreamResponse(heartbeat={"sources": [{"source": "shop", "error": error}]})
    for source, message in (("shop", cut), ("shop", status), ("", heartbeat)):
        look(source, message)
        assert b"salaries" not in message.SerializeToString() and b"card_no" not in message.SerializeToString()
    assert [column.name for column in cut.cut_end.events[0].columns] == ["id", "name"]


def test_words_of_a_server_when_a_policy_keeps_something_back_then_no_error_quotes_them(tmp_path: Path) -> None:
    LocalPolicy()
    assert SERVER_WORDS.quoted("no such table: salaries") == "no such table: salaries"
    closed(tmp_path, CLOSED)
    assert "salaries" not in SERVER_WORDS.quoted("no such table: salaries")
