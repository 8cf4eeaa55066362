"""`--output table | json | yaml`: each command that has the API's own answer prints it in each form."""

import importlib
import json
from collections.abc import Iterator

import pytest
import typer
import yaml
from typer.main import get_command

from controlplane_api.cli import COMMANDS
from controlplane_api.commands.options import add_shared_options
from controlplane_api.database import Database
from controlplane_api.registry.sql_registry import SqlRegistry
from tests.controlplane_api import facts
from tests.controlplane_api.commands import menura
from tests.controlplane_api.conftest import serving


@pytest.fixture
def here(database: Database, registry: SqlRegistry) -> Iterator[dict[str, str]]:
    facts.record_shop(registry)
    with serving(database) as url:
        yield {"MENURA_API": url, "MENURA_TENANT": "acme"}


@pytest.mark.parametrize("words", ["tables shop", "status shop", "table show shop shop.orders", "sync rules shop"])
def test_command_when_a_form_is_asked_for_then_each_has_the_same_answer(here: dict[str, str], words: str):
    as_json, older, as_yaml = (
        menura(*words.split(), *form, **here) for form in (("-o", "json"), ("--json",), ("--output", "yaml"))
    )
    assert as_json.returncode == as_yaml.returncode == older.returncode == 0, as_yaml.stderr
    keys = json.loads(as_json.stdout).keys()
    assert keys == yaml.safe_load(as_yaml.stdout).keys() == json.loads(older.stdout).keys()
    assert as_yaml.stdout.startswith(f"{next(iter(keys))}:")
    assert menura(*words.split(), MENURA_OUTPUT="json", **here).stdout.startswith("{")
    assert not menura(*words.split(), **here).stdout.startswith("{")
    assert menura(*words.split(), "--output", "xml", **here).returncode == 2


def test_commands_when_they_have_json_then_they_have_each_form():
    def options(command: object) -> Iterator[set[str]]:
        yield {option for each in getattr(command, "params", []) for option in each.opts}
        for below in getattr(command, "commands", {}).values():
            yield from options(below)

    apps: list[typer.Typer] = [getattr(importlib.import_module(module), name) for module, name in COMMANDS.values()]
    for app in apps:
        add_shared_options(app)
    found = [each for app in apps for each in options(get_command(app)) if "--json" in each]
    assert len(found) > 30 and all("--output" in each for each in found)
