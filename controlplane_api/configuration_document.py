"""A source's configuration, as far as it can be judged without the source's words; pure.

Comes in: what somebody wants of a source, as JSON has it. Goes out: the text that travels to its agent, always the same
for the same configuration. The agent's own parser judges the rest. No secret is in it: the control plane keeps and
shows what it is given, so a setting that holds a secret names its place on the agent's host. Settings are told by the
words of their names; tables and columns of a `filter` are nobody's settings.
"""

import json
import re
from math import isfinite
from typing import Any

from menura.naming import is_identity
from menura.source_configuration import MAX_DEPTH, MAX_DOCUMENT_BYTES, SECRET_REFERENCES

MAX_KEY_CHARS = 512
MAX_TEXT_CHARS = 8_192
#: of which the tables are the source's, and their names
NAMES_OF_TABLES = ("filter",)
_SECRET = re.compile(
    r"passw|passphrase|secret|token|credential|private_?key|api_?key|access_?key|(?:^|[_-])(?:pass|pwd)(?:$|[_-])",
    re.IGNORECASE,
)
_PLACES = ("_file", "_env")
#: control characters, and halves of characters
_NO_TEXT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_LOOKS_SECRET = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY|://[^/@\s:]*:[^\s]+@|(?:passw(?:or)?d|passphrase|pwd)\s*=\s*\S", re.IGNORECASE
)

Document = dict[str, Any]


class DocumentRefused(ValueError):
    """`path` is of keys and numbers, from the document's root."""

    def __init__(self, path: tuple[str | int, ...], found: str, remedy: str) -> None:
        super().__init__(found)
        self.path = path
        self.found = found
        self.remedy = remedy


def text_of(document: Document) -> str:
    """
    >>> text_of({"kind": "memory", "client": {"password": {"file": "shop"}}})
    '{"client":{"password":{"file":"shop"}},"kind":"memory"}'
    >>> text_of({"kind": "memory", "password": "s3cret"})
    Traceback (most recent call last):
    ...
    controlplane_api.configuration_document.DocumentRefused: holds a secret

    Raises `DocumentRefused`.
    """
    kind = document.get("kind")
    if not isinstance(kind, str) or not is_identity(kind):
        raise DocumentRefused(
            ("kind",), "is not the name of a kind of source", "Add kind: NAME, e.g. that of the agent's file"
        )
    _check((), document)
    text = json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
    if len(text.encode()) > MAX_DOCUMENT_BYTES:
        raise DocumentRefused((), f"has more than {MAX_DOCUMENT_BYTES} bytes", "Let the filter list fewer tables")
    return text


def _check(path: tuple[str | int, ...], value: object) -> None:
    if len(path) > MAX_DEPTH:
        raise DocumentRefused(path, f"is more than {MAX_DEPTH} levels deep", "Take it out")
    if isinstance(value, dict):
        for key, each in value.items():
            here = (*path, key)
            _check_text(here, key, MAX_KEY_CHARS)
            if path[:1] != NAMES_OF_TABLES:
                _check_secret(here, key, each)
            _check(here, each)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            _check((*path, number), each)
    elif isinstance(value, str):
        _check_text(path, value, MAX_TEXT_CHARS)
        if _LOOKS_SECRET.search(value):
            raise DocumentRefused(path, "holds a secret", _remedy(path))
    elif value is not None and not (isinstance(value, bool | int) or (isinstance(value, float) and isfinite(value))):
        raise DocumentRefused(path, "is no text, number, list or mapping", "Put it in quotes")


def _check_text(path: tuple[str | int, ...], text: object, most: int) -> None:
    if not isinstance(text, str) or len(text) > most or _NO_TEXT.search(text):
        raise DocumentRefused(path[:-1], f"holds what is no text of up to {most} signs", "Correct it")


def _check_secret(path: tuple[str | int, ...], key: str, value: object) -> None:
    """A setting that is named as secrets are says where it is."""
    if value is None or not _SECRET.search(key):
        return
    if isinstance(value, str) and value and key.lower().endswith(_PLACES):
        return
    places = value if isinstance(value, dict) else {}
    if len(places) == 1 and all(place in SECRET_REFERENCES and isinstance(name, str) for place, name in places.items()):
        return
    raise DocumentRefused(path, "holds a secret", _remedy(path))


def _remedy(path: tuple[str | int, ...]) -> str:
    key = path[-1] if path else "password"
    return (
        f"Write {key}: {{file: NAME}}, a file in the secrets folder of the agent's host, or {key}: {{env: NAME}};"
        " and change the secret if it was a real one"
    )
