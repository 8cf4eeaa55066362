"""What people type first: other words of a command, a version, names that are short or wrong."""

from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from unittest.mock import patch

import pytest
from menura import cli, doctor_command

from controlplane_api.database import Database
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import SourceKey
from tests.controlplane_api import facts
from tests.controlplane_api.commands import menura
from tests.controlplane_api.conftest import serving
from tests.remedies import commands


@pytest.fixture
def here(database: Database, registry: SqlRegistry) -> Iterator[dict[str, str]]:
    facts.record_shop(registry)
    with serving(database) as url:
        yield {"MENURA_API": url, "MENURA_TENANT": "acme"}


def test_other_words_when_they_are_typed_then_are_what_people_mean(here: dict[str, str]) -> None:
    for typed, meant in cli.OTHER_WORDS.items():
        arguments = ["--help"] if len(typed) == 1 else []
        other, word = (menura(*words, *arguments, **here) for words in (typed, meant))
        assert (other.returncode, other.stdout) == (word.returncode, word.stdout), typed
        assert word.returncode == 0, (meant, word.stderr)
        assert not set(typed[:1]) & set(cli.WORDS) or len(typed) == 2, f"{typed} is a command of its own"


@pytest.mark.parametrize("word", ["version", "--version", "-V"])
def test_version_when_it_is_asked_for_then_is_the_packages(word: str) -> None:
    done = menura(word)
    assert (done.returncode, done.stdout) == (0, f"menura {version('menura')}\n")


def test_word_when_it_is_no_command_then_the_error_has_one_that_is_like_it_and_no_control_character() -> None:
    near = menura("statsu")
    assert near.returncode == 2 and "'statsu' is no command. Did you mean menura status?" in near.stderr
    assert near.stdout == "" and len(near.stderr.splitlines()) == 1
    far = menura("x\x1b[2J" * 100)
    assert "\x1b" not in far.stderr and "Did you mean" not in far.stderr and len(far.stderr) < 200


def test_word_when_its_component_is_not_on_this_host_then_the_error_says_which_package_has_it() -> None:
    of_agent = {name: word for name, word in cli.WORDS.items() if word.extra == "agent"}
    with patch.object(cli, "installed_words", lambda: of_agent):
        done = menura("status")
    assert done.returncode == 2 and "status is not installed on this host; it comes with menura[api]" in done.stderr


def test_tables_when_no_source_is_named_then_are_those_of_the_only_one(
    here: dict[str, str], registry: SqlRegistry
) -> None:
    assert menura("tables", **here).stdout == menura("tables", "shop", **here).stdout
    registry.record_agent(
        replace(facts.agent_seen(), agent="agent-2", session="b", sources=facts.agent_seen(sources=["crm"]).sources)
    )
    several = menura("tables", **here)
    assert several.returncode == 2 and "it names no source, and there are 2: crm, shop" in several.stderr
    none = menura("tables", "--tenant", "globex", "--api", here["MENURA_API"])
    assert none.returncode == 2 and "there is no source yet" in none.stderr


def test_why_when_a_table_is_named_without_its_database_then_is_found_where_one_has_the_name(
    here: dict[str, str], registry: SqlRegistry
) -> None:
    assert "shop.orders of source shop" in menura("why", "orders", "--for", "0", **here).stdout
    assert "shop.orders of source shop" in menura("why", "shop", "orders", "--for", "0", **here).stdout
    missing = menura("why", "order", "--for", "0", **here)
    assert missing.returncode == 2 and "no source has a table of this name" in missing.stderr
    seen = [facts.table_seen("orders"), facts.table_seen("orders", "archive")]
    facts.record_cartography(registry, SourceKey("acme", "shop"), "mysql", "9.7.0", facts.UUID, seen, facts.T0)
    several = menura("why", "orders", "--for", "0", **here)
    assert several.returncode == 2 and "there are 2: shop archive.orders, shop shop.orders" in several.stderr


def test_messages_when_they_name_the_command_that_lists_tables_then_it_lists_them(
    here: dict[str, str], registry: SqlRegistry
) -> None:
    missing = menura("why", "order", "--for", "0", **here)
    unfinished = menura("sync", "start", "shop", "orders", **here)
    registry.record_agent(
        replace(facts.agent_seen(), agent="agent-2", session="b", sources=facts.agent_seen(sources=["crm"]).sources)
    )
    several = menura("tables", **here)
    for refused in (missing, unfinished, several):
        assert refused.returncode == 2
        words = commands(refused.stderr.strip())[-1]
        assert words == ["tables", "SOURCE"]
        listed = menura(*words[:-1], "shop", **here)
        assert listed.returncode == 0 and "orders" in listed.stdout


def test_doctor_when_nothing_is_named_then_looks_at_the_packages_agent_or_says_what_to_name(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("etc")
    with patch.object(doctor_command, "PACKAGED_CONFIG", str(folder / "agent.yaml")):
        refused = menura("doctor")
        assert refused.returncode == 2 and "on a database's host --config FILE" in refused.stderr
        (folder / "agent.yaml").write_text("no: agent\n")
        assert f"{folder}/agent.yaml" in menura("doctor", "--all").stderr


def test_events_when_a_statement_stands_in_many_lines_then_are_told_in_one(
    here: dict[str, str], registry: SqlRegistry
) -> None:
    ddl = replace(facts.event("orders", 2, "ALTERED"), statement="ALTER TABLE orders\n\tADD n INT,\n\tADD m INT")
    landed = facts.cut(1, facts.file("orders", 1), start=[facts.started("orders", 1)], events=[ddl])
    registry.apply_entry(facts.LANDING, facts.entry(1, landed))
    assert "ALTER TABLE orders ADD n INT, ADD m INT" in menura("events", "shop", "shop.orders", **here).stdout
