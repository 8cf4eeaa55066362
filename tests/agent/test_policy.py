"""The policy of the database's host: its file, and what it says of names. Without a server or a gateway."""

import json
import os
from pathlib import Path

import pytest
import yaml

from agent.errors import PolicyUnusable
from agent.policy_command import run
from agent.veto import policy_file
from agent.veto.local_policy import LocalPolicy
from agent.veto.policy import Policy, Request, Subject
from agent.veto.policy_file import read_policy
from tests.servers import ROOT

CLOSED = """
default: closed
requests: [cartography, changes]
databases:
  shop:
    orders: {columns: all}
    customers: {columns: [id, city], renamed_from: [shop.people]}
    cards: denied
    "log_*": {columns: all, ignored_columns: [address]}
    items: {columns: all, sources: [shop]}
  hr: denied
  stats: allowed
"""
OPEN = """
default: open
databases:
  shop:
    secrets: denied
    "*": {ignored_columns: [pin]}
    notes: {columns: [id], sources: [shop]}
  hr: {salaries: {columns: all}, "*": denied}
"""


SHOP = Subject("shop")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "policy.yaml"


def policy(file: Path, text: str) -> Policy:
    file.write_text(text)
    return read_policy(file)


def leaves(found: Policy, name: str, subject: Subject = SHOP) -> tuple[bool, list[str]]:
    """Whether the table does, and which of some columns."""
    database, table = name.split(".")
    ruling = found.ruling(database, table, subject)
    return ruling.leaves, [name for name in ("id", "ID", "city", "pin", "Pin") if not ruling.columns.ignores(name)]


def test_policy_when_it_is_closed_then_nothing_leaves_that_no_line_names(file: Path) -> None:
    found = policy(file, CLOSED)
    every = ["id", "ID", "city", "pin", "Pin"]
    assert leaves(found, "shop.orders") == (True, every)
    assert leaves(found, "shop.customers") == (True, ["id", "ID", "city"])
    assert leaves(found, "shop.customers", Subject("shop", fold=str)) == (True, ["id", "city"])
    assert leaves(found, "stats.any") == (True, every)
    for name in (
        "shop.cards",
        "shop.Cards",
        "shop.Orders",
        "SHOP.orders",
        "shop.new",
        "new.orders",
        "hr.any",
        "HR.any",
    ):
        assert not found.ruling(*name.split("."), Subject("shop")).leaves, name
    logs = found.ruling("shop", "log_1", Subject("shop"))
    assert logs.leaves and logs.columns.ignores("Address") and not logs.columns.ignores("added later")
    assert found.refusing_line(Request.CHANGES, Subject("shop")) is None
    assert found.refusing_line(Request.DUMPS, Subject("shop")) == 3
    assert (found.ruling("shop", "cards", Subject()).line, found.ruling("shop", "new", Subject()).line) == (8, 0)
    assert found.lets_come("shop", "customers", ("shop", "people"), Subject("shop"))
    assert not found.lets_come("shop", "orders", ("shop", "people"), Subject("shop"))


def test_policy_when_it_is_open_then_all_lines_that_speak_of_a_table_have_to_agree(file: Path) -> None:
    found = policy(file, OPEN)
    assert leaves(found, "shop.orders") == (True, ["id", "ID", "city"])
    assert leaves(found, "shop.notes") == (True, ["id", "ID"])
    assert leaves(found, "shop.notes", Subject("other")) == (True, ["id", "ID", "city"])
    for name in ("shop.secrets", "Shop.SECRETS", "hr.salaries", "hr.any"):
        assert not leaves(found, name)[0], name
    assert leaves(found, "new.new")[0]
    ghosts = Subject("shop", copied_tables=lambda name: ["secrets"] if name == "_secrets_gho" else [])
    assert not leaves(found, "shop._secrets_gho", ghosts)[0]


def test_policy_when_the_control_plane_calls_a_server_by_another_name_then_a_line_for_a_source_gives_it_nothing(
    file: Path,
) -> None:
    closed = policy(file, CLOSED)
    assert leaves(closed, "shop.items")[0] and not leaves(closed, "shop.items", Subject("other"))[0]
    for name in ("shop", "other"):
        assert not leaves(closed, "shop.items", Subject(name, is_own=False))[0]
    opened = policy(file, OPEN)
    assert leaves(opened, "shop.notes", Subject("other", is_own=False)) == (True, ["id", "ID"])
    named = policy(file, "default: open\nsources: [shop]\n")
    assert named.refusing_line(Request.CHANGES, Subject("shop")) is None
    for subject in (Subject("shop", is_own=False), Subject("other")):
        assert named.refusing_line(Request.CHANGES, subject) == 2
        assert not leaves(named, "shop.orders", subject)[0]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "it is empty"),
        ("[", "line 1: this is not YAML"),
        ("\x00", "this is not YAML"),
        ("[" * 5_000, "nested too deeply"),
        ("databases: {}", "lacks default"),
        ("default: maybe", "line 1: default is not one of closed, open"),
        ("default: open\ndefault: closed", "line 2: default is given twice"),
        ("default: open\ntables: {}", "line 2: tables is not a known key"),
        ("default: open\nrequests: [everything]", "line 2: requests[0] is not one of"),
        ("default: open\nrequests: changes", "line 2: requests is not a list"),
        ("default: open\nsources: [7]", "line 2: sources[0] is not a text"),
        ("default: open\ndatabases: {shop: yes}", "databases.shop"),
        ("default: open\ndatabases: {shop: {orders: ignored}}", "databases.shop.orders is not one of"),
        ("default: open\ndatabases: {shop: {orders: {column: all}}}", "is not a known key"),
        ("default: open\ndatabases: {shop: {orders: {columns: some}}}", "is not one of all"),
        ("default: closed\ndatabases: {shop: {orders: {ignored_columns: [a]}}}", "does not say its columns"),
        ("default: open\ndatabases: {shop: {orders: denied, orders: allowed}}", "is given twice"),
        ("default: open\ndatabases: {'': denied}", "has no name"),
        ("default: open # " + "x" * (1 << 20), "more than"),
    ],
)
def test_policy_file_when_it_is_wrong_then_the_error_names_the_place(file: Path, text: str, found: str) -> None:
    file.write_text(text)
    with pytest.raises(PolicyUnusable) as refused:
        read_policy(file)
    assert found in str(refused.value) and refused.value.code == "POLICY_UNUSABLE"


def test_policy_file_when_others_may_write_it_or_it_is_not_there_then_it_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_file, "DEFAULT_FILE", file)
    assert read_policy(None) == Policy() and not Policy().keeps_back
    with pytest.raises(PolicyUnusable, match="no such file"):
        read_policy(file)
    file.write_text("default: closed")
    assert read_policy(None).file == str(file)
    for path, mode, found in (
        (file, 0o664, "others than its owner may write"),
        (file, 0o602, "others than its owner may write"),
        (file.parent, 0o777, "others than its owner may write"),
    ):
        before = path.stat().st_mode
        path.chmod(mode)
        with pytest.raises(PolicyUnusable, match=found):
            read_policy(None)
        path.chmod(before)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setattr(policy_file, "ROOT_USER", 4712)
    with pytest.raises(PolicyUnusable, match="belongs to user"):
        read_policy(None)
    with pytest.raises(PolicyUnusable, match="directory"):
        read_policy(file.parent)


def test_policy_when_the_file_is_broken_while_it_runs_then_the_former_one_stays_in_force(file: Path) -> None:
    file.write_text(CLOSED)
    local = LocalPolicy.read(file)
    veto = local.of(Subject("shop"))
    assert not veto.ruling("shop", "new").leaves
    for broken in ("default: open\nx: 1", "["):
        file.write_text(broken)
        with pytest.raises(PolicyUnusable):
            local.read_again()
        assert not veto.ruling("shop", "new").leaves
    file.unlink()
    with pytest.raises(PolicyUnusable):
        local.read_again()
    assert not veto.ruling("shop", "new").leaves and local.of(Subject("shop")) is veto
    file.write_text("default: open")
    assert local.read_again() and veto.ruling("shop", "new").leaves
    assert not local.read_again()


def test_policy_when_it_is_that_of_its_page_then_it_says_what_the_page_says(file: Path) -> None:
    text = (ROOT / "docs" / "policy.md").read_text().partition("```yaml\n# /etc/menura/")[2].partition("```")[0]
    found = policy(file, f"# {text}")
    for name, expected in (("orders", True), ("customers", True), ("cards", False), ("new", False)):
        assert leaves(found, f"shop.{name}")[0] is expected
    assert not leaves(found, "hr.any")[0]
    assert leaves(found, "shop.customers")[1] == ["id", "ID", "city"]
    assert found.refusing_line(Request.CONFIGURATION, SHOP) is not None


def test_policy_test_when_names_are_given_then_it_shows_the_line_that_decides_and_its_exit_code(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(CLOSED)
    assert run(None, file, ["shop.customers", "shop.log_1"], "table") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"request cartography: leaves ({file} line 3)",
        f"request changes: leaves ({file} line 3)",
        f"request dumps: stays ({file} line 3)",
        f"request configuration: stays ({file} line 3)",
        f"any source: shop.customers: leaves ({file} line 7)",
        f"any source: shop.customers, its columns: only city, id ({file} line 7)",
        f"any source: shop.log_1: leaves ({file} line 9)",
        f"any source: shop.log_1, its columns: all, without address ({file} line 9)",
    ]
    assert run(None, file, ["shop.cards", "shop.orders"], "table") == 39
    assert f"any source: shop.cards: stays ({file} line 8)\n" in capsys.readouterr().out
    assert run(None, file, ["new.new"], "table") == 39
    assert f"any source: new.new: stays ({file} default: closed)\n" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_policy_test_when_a_script_asks_then_all_of_it_is_one_document(
    form: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(CLOSED)
    assert run(None, file, ["shop.customers", "shop.log_1", "shop.cards"], form) == 39
    out = capsys.readouterr().out
    found = json.loads(out) if form == "json" else yaml.safe_load(out)
    assert (found["exit_code"], found["errors"]) == (39, [])
    requests = {each["request"]: each["leaves"] for each in found["rulings"] if "request" in each}
    assert requests == {"cartography": True, "changes": True, "dumps": False, "configuration": False}
    shop = {"source": "any source", "database": "shop"}
    of_customers = shop | {"table": "customers", "leaves": True, "why": f"{file} line 7"}
    of_logs = shop | {"table": "log_1", "leaves": True, "why": f"{file} line 9"}
    assert found["rulings"][4:] == [
        of_customers,
        of_customers | {"only_columns": ["city", "id"], "ignored_columns": []},
        of_logs,
        of_logs | {"only_columns": None, "ignored_columns": ["address"]},
        shop | {"table": "cards", "leaves": False, "why": f"{file} line 8"},
    ]
