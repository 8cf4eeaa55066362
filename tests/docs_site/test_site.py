"""The documentation's site: built strictly, as `make docs` does, and loads nothing from elsewhere.

Most of its CPU time is that of loading every component, of whose code pages are made.
"""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from controlplane_api.rollout_states import Reason
from tests.docs_site import error_texts
from tests.docs_site.pages import README, START, blocks, commands
from tests.servers import ROOT

#: attributes whose addresses a browser loads by itself
LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("object", "data")}
#: links that say where a page belongs, and load nothing
TOLD = ("canonical", "next", "prev")
STYLE_LOADS = re.compile(r"(?:url\(|@import\s)\s*[\"']?(?:https?:)?//")


class Loads(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.policy = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"] or ""
        if tag == "link" and found.get("rel") in TOLD:
            return
        self.addresses += [value for name, value in attrs if value and (tag, name) in LOADED]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = {"NO_MKDOCS_2_WARNING": "1", "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_site_when_built_then_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text())
        outside = [address for address in loads.addresses if re.match(r"(?:https?:)?//", address)]
        assert loads.addresses and not outside, (page, outside)
        # what a script might still load is refused by the page's own policy
        assert loads.policy.startswith("default-src 'self';") and "http" not in loads.policy, page
        assert not STYLE_LOADS.search(page.read_text()), page
    for style in [*site.rglob("*.css"), *site.rglob("*.svg")]:
        assert not STYLE_LOADS.search(style.read_text()), style


def test_references_when_built_then_have_what_the_code_has(site: Path) -> None:
    """One of each kind: an error, an option, a figure, a route, a key, a check of a server, a grant."""
    for page, text in {
        "reference/errors": "LAKE_TAKEN",
        "reference/commands": "--rows-per-second",
        "reference/metrics": "menura_sink_freshness_seconds",
        "reference/rest": "/api/v1/tenants/{tenant}/sources/{source}/operations",
        "reference/configuration": "max_rereads_per_hour",
        "sources/mysql": "binlog-row-image",
        "sources/mariadb": "REPLICA MONITOR",
        "sources/postgresql": "publish_via_partition_root",
    }.items():
        shown = re.sub(r"<[^>]+>", "", (site / f"{page}.html").read_text())
        assert text in shown, (page, text)


def test_failures_page_when_it_names_a_code_then_there_is_such_an_error() -> None:
    named = set(re.findall(r"\b[A-Z]{3,}(?:_[A-Z0-9]+)+\b", (ROOT / "docs" / "failures.md").read_text()))
    codes = {code for code in named if not code.startswith("MENURA_") and code not in set(Reason)}
    assert codes and not [code for code in codes if not error_texts.is_code(code)]


def test_commands_of_readme_when_they_are_looked_for_then_each_is_run() -> None:
    """`make demo` by the start page's test, `make test` by the run that this test is part of."""
    (block,) = [text for _, text in blocks(README)]
    assert commands(block) == ["make demo", "make test"]
    assert commands(blocks(START)[0][1]) == ["make demo KEEP=1"]
    assert "make test" in (ROOT / ".ci" / "run").read_text().replace(" CHECKED=1", "")
