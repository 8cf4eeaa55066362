"""axe-core, from npm by `.ci/setup axe`: what whoever uses a screen reader or a keyboard can't use on a page."""

from pathlib import Path

from tests.controlplane_api.browser import Browser
from tests.servers import ServerMissing

SCRIPT = Path(__file__).parents[2] / ".servers/axe/node_modules/axe-core/axe.min.js"
#: of axe's four; minor and moderate ones are left out
IMPACTS = ("serious", "critical")


def barriers(browser: Browser) -> list[str]:
    """Of the page that is open: rule, element and what is wrong with it."""
    if not SCRIPT.exists():
        raise ServerMissing("no axe-core: run .ci/setup axe")
    if not browser.run("return 'axe' in window"):
        browser.run(SCRIPT.read_text())
    found = browser.run("return axe.run(document).then((found) => found.violations)")
    return [
        f"{each['id']} {node['target'][0]}: {node['failureSummary']}"
        for each in found
        if each["impact"] in IMPACTS
        for node in each["nodes"]
    ]
