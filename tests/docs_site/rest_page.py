"""The page of REST, from the API's own description."""

import json
from collections import defaultdict
from functools import cache
from typing import Any

from controlplane_api.api.app import _routes
from controlplane_api.api.roles import NEEDS
from controlplane_api.identity.callers import Need
from tests.docs_site.tables import cell, table

HEAD = """# REST

Made from the API's description, which a running API serves at `/api/v1/openapi.json`; [openapi.json](openapi.json) is
the one of this version. [Use the API](../tables.md#use-the-api) says what all routes have in common. Each refusal is a
problem document whose `type` names a page with cause and fix.
"""
MAY = {
    Need.NOBODY: "everybody",
    Need.ANYBODY_KNOWN: "every caller",
    Need.VIEW: "viewer",
    Need.READ_ROWS: "reader",
    Need.OPERATE: "operator",
    Need.ADMINISTER: "admin",
    Need.VIEW_FLEET: "fleet-viewer",
    Need.REPORT_LAKE: "sink",
}
_METHODS = ("get", "post", "put", "patch", "delete")


@cache
def document() -> dict[str, Any]:
    described: dict[str, Any] = _routes("menura_session")[0].openapi()
    return described


def as_json() -> str:
    return json.dumps(document(), indent=1)


def page() -> str:
    described = document()
    by_tag: defaultdict[str, list[str]] = defaultdict(list)
    for path, operations in described["paths"].items():
        for method in _METHODS:
            if method in operations:
                by_tag[operations[method].get("tags", ["service"])[0]].append(_route(path, method, operations[method]))
    parts = [HEAD]
    for tag in described["tags"]:
        title = f"{tag['name'][0].upper()}{tag['name'][1:]}"
        parts += [f"## {title}\n\n{tag['description']}\n", *by_tag[tag["name"]]]
    return "\n".join(parts)


def _route(path: str, method: str, operation: dict[str, Any]) -> str:
    told = " ".join(str(operation.get("description", operation["summary"])).split())
    needs = {endpoint.__name__: need for endpoint, need in NEEDS.items()}
    need = needs.get(operation["operationId"])
    may = f" For: {MAY.get(need, need)}." if need is not None else ""
    asked = [each for each in operation.get("parameters", ()) if each["in"] != "path"]
    rows = [(f"`{each['name']}`", each["in"], cell(each.get("description", ""))) for each in asked]
    shown = f"\n{table(('parameter', 'in', 'meaning'), rows)}" if rows else ""
    return f"### `{method.upper()} {path}`\n\n{cell(told)}{may}\n{shown}"
