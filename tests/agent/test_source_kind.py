"""Kinds of sources: one of another package is chosen by its name in the configuration, and read like any other."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.config import load
from agent.errors import ConfigError
from agent.pipeline import Agent
from agent.source_kind import find_kind, kind_names

CONFIG = """\
tenant: acme
agent: host
gateway: {{address: "127.0.0.1:7070"}}
sources:
  counted:
    kind: {kind}
    {entries}
"""
#: reads no server: its plugins say what they were given
KIND = """\
from dataclasses import dataclass
from agent.filter import Identifiers
from agent.settings import SourceConfig
from menura.v1 import stream_pb2

identifiers = Identifiers(fold=str)
config_keys = ("rows",)

@dataclass(frozen=True, slots=True)
class CountConfig(SourceConfig):
    rows: int = 1

def configure(common, entry, entries):
    rows = entry.required(entries, "rows").whole_number(1, 9)
    return CountConfig(name=common.name, kind=common.kind, filter=common.filter, rows=rows)

class Plugin:
    request_type = stream_pb2.Kafka
    findings = ()
    def __init__(self, source):
        self.source = source
    def preflight(self):
        return f"{self.source.name} counts to {self.source.rows} without {sorted(self.source.filter.rules)}"

def make_plugins(context):
    return [Plugin(context.source)]
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose packages are as good as installed."""
    monkeypatch.syspath_prepend(tmp_path)
    find_kind.cache_clear()
    yield tmp_path
    find_kind.cache_clear()


def install(folder: Path, package: str, kind: str) -> None:
    (folder / f"{package}.py").write_text(KIND)
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[menura.sources]\n{kind} = {package}\n")


def write(folder: Path, kind: str, entries: str) -> Path:
    path = folder / "agent.yaml"
    path.write_text(CONFIG.format(kind=kind, entries=entries))
    return path


def test_kind_when_another_package_brings_it_then_its_sources_are_checked_and_those_of_others_are_not(packages: Path):
    install(packages, "menura_counts", "counts")
    config = load(write(packages, "counts", "rows: 3\n    filter: {hidden: }"))
    told: list[str] = []
    (checked,) = Agent(config).check(lambda: told.append("a source was asked"))
    assert (checked.error, checked.found) == (None, ("counted counts to 3 without ['hidden']",))
    assert told == ["a source was asked"]
    assert kind_names() == ["counts", "mysql", "postgresql"]


def test_kind_when_its_entries_are_wrong_then_one_line_names_the_fix(packages: Path):
    install(packages, "menura_counts", "counts")
    with pytest.raises(ConfigError, match=r"line 7: sources\.counted\.rows is not a whole number from 1 to 9"):
        load(write(packages, "counts", "rows: 10"))
    with pytest.raises(ConfigError, match=r"sources\.counted\.client is not a known key.*kind, filter_policy.*rows"):
        load(write(packages, "counts", "client: {host: db}"))
    with pytest.raises(ConfigError, match=r"sources\.counted\.rows is not a known key"):
        load(write(packages, "mysql", "rows: 3"))


def test_kind_when_its_package_can_not_be_loaded_then_one_line_says_why(packages: Path):
    install(packages, "broken_counts", "counts")
    (packages / "broken_counts.py").write_text("import no_such_package")
    with pytest.raises(ConfigError, match=r"broken_counts can't be loaded: No module named 'no_such_package'"):
        load(write(packages, "counts", "rows: 3"))


def test_kind_when_nobody_or_two_packages_bring_it_then_one_line_says_so(packages: Path):
    with pytest.raises(ConfigError, match=r"line 6: sources\.counted\.kind names the kind of source 'counts': no inst"):
        load(write(packages, "counts", "rows: 3"))
    install(packages, "menura_counts", "counts")
    install(packages, "other_counts", "counts")
    with pytest.raises(ConfigError, match=r"more than one package brings it \(menura_counts, other_counts\)"):
        load(write(packages, "counts", "rows: 3"))
