"""What a card of a table may hold before the gateway keeps anything of it; what an agent is told of its tables."""

import pytest
from menura.v1.catalog_pb2 import Cartography, ColumnCard, KeyCard, TableCard
from menura.v1.config_pb2 import TableName

from gateway.errors import PayloadInvalid
from gateway.registry import SourceCommitted, SourceDesired, TableDesired
from gateway.wire.translation import check_cards, replicate

ORDERS = TableName(database="shop", table="orders")


def of(columns: int = 1, keys: int = 1, key_columns: int = 1, name: str = "id", type_: str = "bigint") -> Cartography:
    key = KeyCard(name="k", columns=["id"] * key_columns)
    column = ColumnCard(name=name, column_type=type_)
    return Cartography(source="shop", tables=[TableCard(table=ORDERS, columns=[column] * columns, keys=[key] * keys)])


def test_card_when_it_is_larger_than_any_servers_table_then_it_is_refused_by_name() -> None:
    check_cards(of(columns=4_096, keys=4_096, key_columns=32, name="c" * 64))
    for large, found in (
        (of(columns=8_193), "8193 columns, more than 8192"),
        (of(keys=8_193), "8193 keys, more than 8192"),
        (of(key_columns=65), "65 columns in a key, more than 64"),
        (of(name="c" * 257), "257 characters in a column's name, more than 256"),
        (of(columns=10, type_="t" * (1 << 20)), "bytes, more than 8388608"),
    ):
        with pytest.raises(PayloadInvalid, match=f"table shop.orders with .*{found}"):
            check_cards(large)


def test_table_when_a_verification_may_take_a_dumps_place_then_the_agent_is_told_of_it_in_a_field_of_its_own() -> None:
    table = TableDesired("shop", "orders", unlogged_gsn=11, dump_gsn=5, compared_gsn=20)
    (sync,) = replicate(SourceDesired("shop", 1, (table,)), SourceCommitted(), 1, 1_000, 1 << 20).tables
    assert (sync.unlogged_gsn, sync.dump_gsn, sync.compared_gsn) == (11, 5, 20)
