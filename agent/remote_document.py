"""A source's configuration as the control plane sends it: JSON, which becomes the entries that the agent's file has.

Comes in: a text of nobody's trust. Goes out: an `Entry`, read by the same parser as `sources.NAME` of the file, which
may reach on this host what its `access` allows. Pure.
"""

import json
from typing import Any

import yaml
from menura.source_configuration import MAX_DEPTH, MAX_DOCUMENT_BYTES, sha256_of

from agent.config_entries import Entry
from agent.errors import ConfigMalformed
from agent.host_access import HostAccess

_KEPT = "What ran before goes on, if something did"
_TAG = "tag:yaml.org,2002:"


def entry_of(source: str, document: str, sha256: str, access: HostAccess) -> Entry:
    """Raises `ConfigMalformed`."""
    if len(document.encode("utf-8", "replace")) > MAX_DOCUMENT_BYTES or sha256_of(document) != sha256:
        raise _malformed(source, "it is too large, or not the text that its digest is of")
    try:
        value = json.loads(document, parse_constant=_refuse)
        if not isinstance(value, dict):
            raise _malformed(source, "it is no object")
        return Entry(whose(source), f"sources.{source}", _node(value, 0), access)
    except (ValueError, RecursionError) as broken:
        raise _malformed(source, "it is no JSON, or nests too deeply") from broken


def whose(source: str) -> str:
    return f"of source {source} that the control plane sends"


def _node(value: Any, depth: int) -> yaml.Node:  # noqa: ANN401  (what JSON has)
    if depth > MAX_DEPTH:
        raise ValueError("too deep")
    if isinstance(value, dict):
        pairs = [(_scalar("str", key), _node(each, depth + 1)) for key, each in value.items()]
        return yaml.MappingNode(f"{_TAG}map", pairs)
    if isinstance(value, list):
        return yaml.SequenceNode(f"{_TAG}seq", [_node(each, depth + 1) for each in value])
    if value is None:
        return _scalar("null", "")
    if isinstance(value, bool):
        return _scalar("bool", str(value).lower())
    return _scalar("str", value) if isinstance(value, str) else _scalar(type(value).__name__, str(value))


def _scalar(kind: str, value: str) -> yaml.ScalarNode:
    return yaml.ScalarNode(_TAG + kind, value)


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _malformed(source: str, found: str) -> ConfigMalformed:
    return ConfigMalformed(
        f"reading the configuration {whose(source)}",
        found,
        data=_KEPT,
        remedy="Use the same version of Menura at the agent and the gateway",
    )
