"""The pages that people read first, and the blocks of commands in them."""

import re
from pathlib import Path

from tests.servers import ROOT

README = ROOT / "README.md"
START = ROOT / "docs" / "start.md"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of each, in the page's order."""
    return _BLOCK.findall(page.read_text())


def commands(block: str) -> list[str]:
    """
    >>> commands("make demo    # a shop\\n")
    ['make demo']
    """
    return [line.partition(" #")[0].strip() for line in block.splitlines()]
