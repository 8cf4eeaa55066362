"""What mkdocs calls while it builds the site: pages from the code, and files of the repository that are not in docs/.

Comes in: docs/, README.md, which is the site's first page, and whatever file of the repository a page links. Goes out:
the site. A link reads the same in the repository and on the site: one that leaves docs/ leads to the copy of that file.
A comment `<!-- error CODE -->`, `<!-- grants FLAVOR -->` or `<!-- checks FLAVOR -->` becomes what the code says.
"""

import posixpath
import re
from collections.abc import Callable
from typing import Any

from tests.docs_site import checks, commands_page, configuration_page, error_texts, errors_page, rest_page
from tests.servers import ROOT

MADE: dict[str, Callable[[], str]] = {
    "reference/commands.md": commands_page.page,
    "reference/configuration.md": configuration_page.page,
    "reference/errors.md": errors_page.page,
    "reference/openapi.json": rest_page.as_json,
    "reference/rest.md": rest_page.page,
}
#: files of the repository that are pages of the site
INCLUDED = {
    "README.md": "index.md",
    "EXIT_CODES.md": "reference/exit-codes.md",
    "METRICS.md": "reference/metrics.md",
    "agent/TYPES.md": "reference/types.md",
    "agent/CONFORMANCE.md": "reference/conformance.md",
    "spark_sink/SCHEMA_CHANGES.md": "reference/schema-changes.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "DECISIONS.md": "project/decisions.txt",
    "CHANGELOG.md": "project/changelog.md",
    "LICENSE": "project/license.txt",
}
_LINK = re.compile(r"(!?\[[^\]\n]*\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_MARKS: dict[str, Callable[[str], str]] = {
    "grants": checks.grants,
    "checks": checks.checked,
    "error": errors_page.texts,
}
_MARK = re.compile(rf"<!-- ({'|'.join(_MARKS)}) (\S+) -->\n?")
_FENCES = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> Any:
    """A page of docs/ that `nav` lacks stands at its end."""
    listed = set(re.findall(r"[\w./-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    pages = (str(file.relative_to(ROOT / "docs")) for file in sorted((ROOT / "docs").rglob("*.md")))
    others = [page for page in pages if page not in listed]
    config.nav += [{"More": others}] if others else []
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds what is made and what is included; a linked file of another kind is added where a page links it."""
    from mkdocs.structure.files import File  # noqa: PLC0415

    made = {name: make() for name, make in MADE.items()}
    included = {page: (ROOT / name).read_text() for name, page in INCLUDED.items()}
    texts = {file.src_uri: file.content_string for file in files if file.src_uri.endswith(".md")} | included
    pages = {name: text for name, text in texts.items() if name.endswith(".md")}
    linked = {outside for name, text in pages.items() for outside in _linked_outside(name, text)}
    sources = {_page_of(name): (ROOT / name).read_text() for name in sorted(linked - INCLUDED.keys())}
    for name, text in {**made, **included, **sources}.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    own = page.file.src_uri
    expanded = _MARK.sub(lambda found: _marked(own, *found.groups()), markdown)
    return _outside_fences(expanded, lambda text: _LINK.sub(lambda found: _relinked(own, found), text))


def _marked(page: str, mark: str, of: str) -> str:
    assert mark != "error" or error_texts.is_code(of), f"{page}: there is no error {of}"
    made = _MARKS[mark](of)
    return f"`{of}` says:\n\n{made}\n" if mark == "error" else made


def _outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    parts, end = [], 0
    for fence in _FENCES.finditer(markdown):
        parts += [change(markdown[end : fence.start()]), fence.group()]
        end = fence.end()
    return "".join([*parts, change(markdown[end:])])


def _linked_outside(page: str, markdown: str) -> set[str]:
    targets = (_target(page, address) for _, address, _, _ in _LINK.findall(_FENCES.sub("", markdown)))
    return {name for name in targets if name and (ROOT / name).is_file() and not name.startswith("docs/")}


def _relinked(page: str, link: re.Match[str]) -> str:
    begin, address, anchor, end = link.groups()
    target = _target(page, address)
    if target is None or not (ROOT / target).is_file():
        return link.group()
    to = target.removeprefix("docs/") if target.startswith("docs/") else _page_of(target)
    return f"{begin}{posixpath.relpath(to, posixpath.dirname(page) or '.')}{anchor or ''}{end}"


def _target(page: str, address: str) -> str | None:
    """The file of the repository that an address of the page means; None: none."""
    if ":" in address or address.startswith("/"):
        return None
    in_repository = next((name for name, made in INCLUDED.items() if made == page), f"docs/{page}")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(in_repository), address))
    return None if path.startswith("..") else path


def _page_of(file: str) -> str:
    """Source is a text that a browser shows."""
    return INCLUDED.get(file, f"source/{file}.txt")
