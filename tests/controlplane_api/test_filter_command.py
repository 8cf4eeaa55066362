"""`menura filter`: what of a table leaves its host, shown and changed for sources that are configured here."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from agent.filter import Filter
from agent.filter import Policy as FilterPolicy
from controlplane_api.database import Database
from controlplane_api.errors import RequestInvalid
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.table_filter import Leaving, changed, judged
from tests.controlplane_api import facts
from tests.controlplane_api.commands import menura
from tests.controlplane_api.conftest import serving
from tests.remedies import commands

TABLE = ("shop", "orders")


@pytest.fixture
def here(database: Database, registry: SqlRegistry, tmp_path: Path) -> Iterator[dict[str, str]]:
    facts.record_shop(registry)
    with serving(database) as url:
        known = {"MENURA_API": url, "MENURA_TENANT": "acme"}
        file = tmp_path / "shop.yaml"
        file.write_text(yaml.safe_dump({"kind": "memory", "filter": {"shop.items": None}}))
        added = menura("sources", "add", "shop", "--agent", "agent-1", "-f", str(file), **known)
        assert added.returncode == 0, added.stderr
        yield known


def rules(here: dict[str, str]) -> object:
    shown = menura("sources", "show", "shop", "--json", **here)
    return json.loads(shown.stdout)["desired"]["filter"]


def test_filter_when_columns_are_kept_back_and_released_then_the_rule_of_this_table_alone_changes(
    here: dict[str, str],
) -> None:
    shown = menura("filter", "show", "shop", "shop.orders", **here)
    assert "2 of 2 columns of shop.orders leave the host of source shop." in shown.stdout
    plan = menura("filter", "set", "shop", "shop.orders", "--ignore", "NOTE", "--dry-run", **here)
    assert "1 of 2 columns of shop.orders leave" in plan.stdout and "Nothing was changed." in plan.stdout
    assert rules(here) == {"shop.items": None}
    assert menura("filter", "set", "shop", "shop.orders", "--ignore", "NOTE", **here).returncode == 0
    assert rules(here) == {"shop.items": None, "shop.orders": {"ignored_columns": ["note"]}}
    found = json.loads(menura("filter", "show", "shop", "shop.orders", "-o", "json", **here).stdout)
    assert (found["leaves"], found["columns"]) == (True, {"id": True, "note": False})
    assert menura("filter", "set", "shop", "shop.orders", "--release", "note", **here).returncode == 0
    assert rules(here) == {"shop.items": None}
    stays = menura("filter", "set", "shop", "shop.orders", "--stays", **here)
    assert "No row of shop.orders leaves the host" in stays.stdout
    assert rules(here) == {"shop.items": None, "shop.orders": None}
    assert menura("filter", "set", "shop", "shop.orders", "--leaves", **here).returncode == 0
    assert rules(here) == {"shop.items": None}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--ignore", "id"], "id is in the key"),
        (["--ignore", "nmae"], "the table has no column nmae; it has id, note"),
        ([], "it says nothing"),
        (["--stays", "--ignore", "note"], "no column leaves of a table that stays"),
    ],
)
def test_filter_when_what_is_asked_can_not_be_then_it_is_refused_with_the_reason(
    here: dict[str, str], options: list[str], words: str
) -> None:
    refused = menura("filter", "set", "shop", "shop.orders", *options, **here)
    assert refused.returncode == 2 and words in refused.stderr
    assert rules(here) == {"shop.items": None}


def test_filter_when_its_words_name_a_command_then_that_goes_on(here: dict[str, str], tmp_path: Path) -> None:
    """After a change, and where the rule of a name in any database is in the way."""
    done = menura("filter", "set", "shop", "shop.orders", "--ignore", "note", **here)
    words = commands(done.stdout)[-1]
    assert words == ["sources", "show", "shop"] and menura(*words, **here).returncode == 0
    file = tmp_path / "of any.yaml"
    file.write_text(yaml.safe_dump({"kind": "memory", "filter_policy": "drop", "filter": {"orders": {}}}))
    assert menura("sources", "change", "shop", "-f", str(file), **here).returncode == 0
    refused = menura("filter", "set", "shop", "shop.orders", "--stays", **here)
    assert refused.returncode == 2
    show, change = commands(refused.stderr.strip())[-2:]
    assert menura(*show, "shop", **here).returncode == 0
    file.write_text(yaml.safe_dump({"kind": "memory", "filter_policy": "drop", "filter": {"other.orders": {}}}))
    assert menura(*change, "shop", "-f", str(file), **here).returncode == 0
    shown = menura("filter", "show", "shop", "shop.orders", **here)
    assert "No row of shop.orders leaves the host" in shown.stdout


@pytest.mark.parametrize("policy", ["accept", "drop"])
@pytest.mark.parametrize(
    "before",
    [None, {}, {"shop.orders": None}, {"orders": None}, {"shop.orders": {"ignored_columns": ["note"]}},
     {"orders": {"ignored_columns": ["note"]}}, {"orders": None, "shop.orders": {"renamed_from": ["o"]}}],
)  # fmt: skip
@pytest.mark.parametrize("wanted", [Leaving(False), Leaving(True), Leaving(True, ("note",))])
def test_filter_when_it_is_changed_then_agents_judge_it_as_wanted(
    policy: str, before: dict[str, object] | None, wanted: Leaving
) -> None:
    configuration = {"filter_policy": policy, "filter": before}
    assert as_agents_do(configuration) == judged(configuration, TABLE)
    try:
        after = changed(configuration, TABLE, wanted)
    except RequestInvalid as refused:
        assert policy == "drop" and not wanted.leaves and "orders" in (before or {}), refused
        return
    assert as_agents_do(after) == judged(after, TABLE) == wanted


def as_agents_do(configuration: dict[str, object]) -> Leaving:
    rules = configuration["filter"]
    assert rules is None or isinstance(rules, dict)
    read = {key: None if not rule else tuple(rule.get("ignored_columns", ())) for key, rule in (rules or {}).items()}
    verdict = Filter(FilterPolicy(str(configuration["filter_policy"])), read).verdict(*TABLE)
    return Leaving(verdict.allowed, tuple(sorted(verdict.ignored_columns)))
