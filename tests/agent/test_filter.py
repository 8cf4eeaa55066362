"""The filter policy, word for word as the seeds describe it."""

import pytest

from agent.errors import FilterColumnIsKey, FilterColumnUnknown, FilterTableUnknown, TableError
from agent.filter import Filter, Identifiers, KnownTable, Policy
from agent.sources.mysql.ddl.identifiers import IDENTIFIERS

RULES = {"orders": None, "customers": ("Email",), "otherdb.items": None, "items": ("note",), "kept": ()}
TABLES = [
    KnownTable("shop", name, ("id", "email", "note"), ("id",)) for name in ("orders", "customers", "items", "kept")
] + [KnownTable("otherdb", "items", ("id",), ("id",))]


@pytest.mark.parametrize(
    ("policy", "database", "table", "allowed", "ignored"),
    [
        # accept: everything, but not what is listed empty; what has ignored_columns loses only those
        (Policy.ACCEPT, "shop", "unlisted", True, set()),
        (Policy.ACCEPT, "shop", "orders", False, set()),
        (Policy.ACCEPT, "shop", "customers", True, {"email"}),
        (Policy.ACCEPT, "shop", "kept", True, set()),
        # drop: nothing, but what is listed
        (Policy.DROP, "shop", "unlisted", False, set()),
        (Policy.DROP, "shop", "orders", True, set()),
        (Policy.DROP, "shop", "customers", True, {"email"}),
        # DATABASE.TABLE wins over TABLE
        (Policy.ACCEPT, "shop", "items", True, {"note"}),
        (Policy.ACCEPT, "otherdb", "items", False, set()),
        (Policy.DROP, "otherdb", "items", True, set()),
        # the server's own databases are never offered
        (Policy.ACCEPT, "mysql", "user", False, set()),
        (Policy.DROP, "performance_schema", "orders", False, set()),
    ],
)
def test_verdict_when_asked_then_follows_the_policy(
    policy: Policy, database: str, table: str, allowed: bool, ignored: set[str]
) -> None:
    verdict = Filter(policy, RULES, identifiers=IDENTIFIERS).verdict(database, table)
    assert (verdict.allowed, set(verdict.ignored_columns)) == (allowed, ignored)


def test_ignored_column_when_written_in_another_case_then_is_the_same() -> None:
    assert Filter(Policy.ACCEPT, RULES).verdict("shop", "customers").ignores("eMail")


@pytest.mark.parametrize("helper", ["_orders_gho", "_orders_del", "_orders_20260101000000_del", "__orders_new"])
def test_verdict_of_an_online_schema_changes_tables_then_is_that_of_the_table_that_they_are_of(helper: str) -> None:
    rules = {"orders": None, "customers": ("email",), "_customers_del": ()}
    accept, drop = (Filter(policy, rules, identifiers=IDENTIFIERS) for policy in (Policy.ACCEPT, Policy.DROP))
    assert not accept.verdict("shop", helper).allowed
    assert not drop.verdict("shop", helper).allowed
    assert accept.verdict("shop", helper.replace("orders", "items")).allowed
    assert accept.verdict("shop", helper.replace("orders", "customers")).ignores("email") != (helper == "_orders_del")


@pytest.mark.parametrize(("renamed_from", "allowed"), [((), False), (("orders",), True), (("shop.orders",), True)])
def test_verdict_of_a_renamed_table_then_is_that_of_both_names_until_the_rule_names_the_former(
    renamed_from: tuple[str, ...], allowed: bool
) -> None:
    rules = {"orders": None, "customers": ("email",), "fresh": ()}
    filter_ = Filter(Policy.ACCEPT, rules, {"fresh": renamed_from} if renamed_from else {}, IDENTIFIERS)
    filter_.origins.are({("shop", "fresh"): ("shop", "orders"), ("shop", "away"): ("shop", "customers")})
    assert filter_.verdict("shop", "fresh").allowed is allowed
    assert filter_.verdict("shop", "away").ignores("email")
    assert filter_.verdict("other", "fresh").allowed
    said = filter_.denial("src", "shop", "fresh")
    assert allowed or "sources.src.filter.shop.fresh.renamed_from: [shop.orders]" in said.remedy


def test_check_when_all_names_exist_then_is_silent() -> None:
    assert Filter(Policy.DROP, RULES).check(TABLES, "shop") == []


@pytest.mark.parametrize(
    ("rules", "error", "named"),
    [
        ({"ordres": None}, FilterTableUnknown, "'ordres'"),
        ({"nodb.orders": None}, FilterTableUnknown, "'nodb.orders'"),
        ({"orders": ("emial",)}, FilterColumnUnknown, "'emial'"),
        ({"shop.orders": ("ID",)}, FilterColumnIsKey, "'id'"),
    ],
)
def test_check_when_a_name_is_wrong_then_names_it(rules: dict, error: type[Exception], named: str) -> None:
    filter_ = Filter(Policy.ACCEPT, rules, identifiers=IDENTIFIERS)
    (found,) = filter_.check(TABLES, "shop")
    assert isinstance(found, error) and named in str(found)
    assert "\n" not in str(found)
    is_of_table = isinstance(found, TableError)
    assert filter_.verdict("shop", "orders").allowed is (rules.get("orders", ()) is not None and not is_of_table)
    assert filter_.verdict("shop", "kept").allowed


def test_digest_when_the_policy_changes_then_changes() -> None:
    digests = {
        Filter(policy, rules).sha256() for policy in Policy for rules in ({}, {"a": None}, {"a": ("b",)}, {"a": ()})
    }
    assert len(digests) == 8


def test_verdict_when_a_kinds_names_have_case_then_only_the_very_name_is_ignored_and_found():
    filter_ = Filter(Policy.ACCEPT, {"orders": ("Email",)}, identifiers=Identifiers(frozenset({"system"}), fold=str))
    verdict = filter_.verdict("shop", "orders")
    assert (verdict.ignores("Email"), verdict.ignores("email")) == (True, False)
    assert filter_.verdict("System", "orders").allowed and not filter_.verdict("system", "orders").allowed
    assert filter_.verdict("shop", "_orders_gho").ignored_columns == set()
    (unknown,) = filter_.check([KnownTable("shop", "orders", ("id", "email"), ("id",))], "shop")
    assert "'Email', which is no column of shop.orders" in unknown.found
