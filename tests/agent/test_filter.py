"""The filter policy, word for word as the seeds describe it."""

import pytest

from agent.errors import FilterColumnIsKey, FilterColumnUnknown, FilterTableUnknown
from agent.filter import Filter, KnownTable, Policy

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
    verdict = Filter(policy, RULES).verdict(database, table)
    assert (verdict.allowed, set(verdict.ignored_columns)) == (allowed, ignored)


def test_ignored_column_when_written_in_another_case_then_is_the_same() -> None:
    assert Filter(Policy.ACCEPT, RULES).verdict("shop", "customers").ignores("eMail")


def test_check_when_all_names_exist_then_is_silent() -> None:
    Filter(Policy.DROP, RULES).check(TABLES, "shop")


@pytest.mark.parametrize(
    ("rules", "error", "named"),
    [
        ({"ordres": None}, FilterTableUnknown, "'ordres'"),
        ({"nodb.orders": None}, FilterTableUnknown, "'nodb.orders'"),
        ({"orders": ("emial",)}, FilterColumnUnknown, "'emial'"),
        ({"shop.orders": ("ID",)}, FilterColumnIsKey, "'ID'"),
    ],
)
def test_check_when_a_name_is_wrong_then_names_it(rules: dict, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named) as caught:
        Filter(Policy.ACCEPT, rules).check(TABLES, "shop")
    assert "\n" not in str(caught.value)


def test_digest_when_the_policy_changes_then_changes() -> None:
    digests = {
        Filter(policy, rules).sha256() for policy in Policy for rules in ({}, {"a": None}, {"a": ("b",)}, {"a": ()})
    }
    assert len(digests) == 8
