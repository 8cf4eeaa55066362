"""What a gateway and an agent agree on about sources that the control plane configures: bounds, and what is compared.

A configuration is a JSON object as text. Its digest is that of the text, so that the two ends need not agree on how
values are written; a list of them has the digest of their names and digests.
"""

import hashlib
from collections.abc import Iterable
from typing import Final

#: of one document, in UTF-8: a filter may list thousands of tables
MAX_DOCUMENT_BYTES: Final = 1 << 20
#: of all documents of one agent, which travel in one message
MAX_AGENT_BYTES: Final = 8 << 20
MAX_SOURCES: Final = 256
#: levels of objects and lists in each other
MAX_DEPTH: Final = 8
#: in place of the digest of what runs, where that is the source of the agent's own file
OWN_FILE: Final = "own file"
#: what a mapping that stands for a secret names on the agent's host: one of these, and nothing else
SECRET_REFERENCES: Final = ("file", "env")


def sha256_of(document: str) -> str:
    """
    >>> sha256_of("{}")[:8]
    '44136fa3'
    """
    return hashlib.sha256(document.encode()).hexdigest()


def digest_of(configurations: Iterable[tuple[str, str]]) -> str:
    """Of names with the digests of their documents, in whatever order they come.

    >>> digest_of([("a", "1"), ("b", "2")]) == digest_of([("b", "2"), ("a", "1")])
    True
    """
    lines = (f"{source} {sha256}\n" for source, sha256 in sorted(configurations))
    return hashlib.sha256("".join(lines).encode()).hexdigest()
