"""The dashboard: pages within one layout, made once from the files beside this one; style and scripts as they are.

The file of a page has what stands within `main`, with pieces that several have, and a script has its name: the content
policy lets no other one run.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from string import Template

_PIECE = re.compile("<!-- (?P<name>[a-z]+)(: (?P<what>[^>]+))? -->")
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

#: of npm: `.ci/setup uplot` puts them beside this file. Without them pages show no plots
UPLOT = {"uplot.css": b"", "uplot.js": b"export default null;\n"}


@dataclass(frozen=True, slots=True)
class Page:
    #: of its file and its script
    name: str
    title: str
    path: str
    #: whether its header has a choice of sources
    of_source: bool = False
    #: of the page that leads to it; empty: the navigation has it
    within: str = ""


PAGES = (
    Page("sources", "Sources", "/"),
    Page("source", "Source", "/source", of_source=True, within="sources"),
    Page("tables", "Tables", "/tables", of_source=True),
    Page("table", "Table", "/table", of_source=True, within="tables"),
    Page("views", "Views", "/views"),
    Page("search", "Search", "/search"),
    Page("dumps", "Dumps", "/dumps"),
    Page("proof", "Proof", "/proof", of_source=True),
    Page("fleet", "Fleet", "/fleet"),
    Page("upgrades", "Upgrades", "/upgrades", within="fleet"),
    Page("audit", "Audit", "/audit"),
    Page("settings", "Settings", "/settings"),
)


def served_files() -> Iterator[tuple[str, bytes, str]]:
    """Each file's path, content and media type."""
    folder = files(__name__)
    layout = Template((folder / "layout.html").read_text("utf-8"))
    for page in PAGES:
        main = _with_pieces((folder / f"{page.name}.html").read_text("utf-8"))
        yield page.path, _in_layout(layout, page, main).encode(), "text/html"
    yield "/login", (folder / "login.html").read_bytes(), "text/html"
    contents = UPLOT | {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    for name, content in sorted(contents.items()):
        media_type = MEDIA_TYPES.get(name[name.rfind(".") :])
        if media_type is not None:
            yield f"/{name}", content, media_type


def missing_page() -> bytes:
    """What a browser is shown at an address that nothing has."""
    layout = Template((files(__name__) / "missing.html").read_text("utf-8"))
    return layout.substitute(links=_links(None)).encode()


def _with_pieces(main: str) -> str:
    """What several pages have is in files of its own: `<!-- NAME: WHAT -->` stands for NAME.html with $what."""

    def piece(found: re.Match[str]) -> str:
        text = (files(__name__) / f"{found['name']}.html").read_text("utf-8")
        return Template(text.rstrip()).substitute(what=found["what"])

    return _PIECE.sub(piece, main)


def _in_layout(layout: Template, page: Page, main: str) -> str:
    return layout.substitute(
        title=page.title,
        name=page.name,
        links=_links(page),
        source_choice="" if page.of_source else " hidden",
        main=main.rstrip(),
    )


def _links(page: Page | None) -> str:
    return "\n".join(
        f'    <a id="to-{each.name}" href="{each.path}"{_current(each, page)}>{each.title}</a>'
        for each in PAGES
        if not each.within
    )


def _current(link: Page, page: Page | None) -> str:
    if page is None:
        return ""
    if link is page:
        return ' aria-current="page"'
    return ' aria-current="true"' if link.name == page.within else ""
