"""What people see of a table behind a gap: that it is compared, and why a dump follows."""

from tests.controlplane_api.browser import Browser
from tests.controlplane_api.commands import menura
from tests.controlplane_api.comparison_facts import gap, log, registry
from tests.controlplane_api.dump_facts import Log
from tests.controlplane_api.facts import unlogged
from tests.controlplane_api.test_dashboard import chromium, kind, page

__all__ = ["chromium", "kind", "log", "page", "registry"]


def test_table_behind_a_gap_when_it_is_compared_and_then_dumped_then_page_and_command_say_so(
    page: Browser, log: Log
) -> None:
    api = page.run("return location.origin")
    page.open(f"{api}/table?tenant=acme&source=shop&database=shop&table=orders")
    for cut, words in (
        (gap(11), "is compared with its source, and what differs is read again"),
        (unlogged("orders", 30), "since it could not be compared: rows may be stale for another reason than a gap"),
    ):
        log.cut(cut)
        page.wait_for_text("#notes", words)
        said = menura("tables", "shop", "--tenant", "acme", "--api", api)
        assert words in " ".join(said.stdout.split()), said
