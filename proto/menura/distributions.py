"""Entry points and versions of installed packages, read from their metadata.

Comes in: the folders of `sys.path`. Goes out: what `importlib.metadata` would say of packages that are folders there,
as pip leaves them. That module brings a parser of mails and one of archives, which an agent keeps for nothing.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

_FOLDERS = ("*.dist-info", "*.egg-info")
_SECTION = re.compile(r"\[(.+)\]")
#: NAME = module:attribute; extras behind it mean nothing to whoever loads it
_ENTRY = re.compile(r"(?P<name>[^#=\s][^=]*?)\s*=\s*(?P<module>[\w.]+)\s*(?::\s*(?P<attribute>[\w.]+))?\s*(?:\[.*\])?")


@dataclass(frozen=True, slots=True)
class EntryPoint:
    name: str
    module: str
    #: empty: the module itself
    attribute: str

    @property
    def value(self) -> str:
        return f"{self.module}:{self.attribute}" if self.attribute else self.module

    def load(self) -> Any:  # noqa: ANN401  (whoever has named the group knows)
        module = import_module(self.module)
        return attrgetter(self.attribute)(module) if self.attribute else module


def entry_points(group: str, name: str | None = None) -> list[EntryPoint]:
    """Of all packages, or those of one name."""
    return [
        EntryPoint(match["name"], match["module"], match["attribute"] or "")
        for metadata in _metadata()
        for match in _entries(metadata / "entry_points.txt", group)
        if name in (None, match["name"])
    ]


def version(name: str) -> str:
    """Raises LookupError."""
    for metadata in _metadata():
        if _name(metadata) == _plain(name):
            text = _text(metadata / "METADATA") or _text(metadata / "PKG-INFO")
            if match := re.search(r"(?m)^Version: *(\S+)", text):
                return match[1]
    raise LookupError(f"{name} is not installed")


def _metadata() -> Iterator[Path]:
    """The folder of each package: of two of the same name the first on the path is the one that is imported."""
    seen: set[str] = set()
    for place in dict.fromkeys(sys.path):
        for folder in (found for pattern in _FOLDERS for found in sorted(Path(place).glob(pattern))):
            if _name(folder) not in seen:
                seen.add(_name(folder))
                yield folder


def _name(folder: Path) -> str:
    return _plain(folder.stem.partition("-")[0])


def _plain(name: str) -> str:
    """
    >>> _plain("Menura_Kafka.Source")
    'menura-kafka-source'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def _entries(file: Path, group: str) -> Iterator[re.Match[str]]:
    section = ""
    for line in map(str.strip, _text(file).splitlines()):
        if found := _SECTION.fullmatch(line):
            section = found[1]
        elif section == group and (match := _ENTRY.fullmatch(line)):
            yield match


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return ""
