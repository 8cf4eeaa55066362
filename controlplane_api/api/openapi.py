"""The API's own description: OpenAPI 3.1, with every status that a route may answer, and HEAD beside each GET.

A router or a route names the errors that it raises: `responses=refusals(SourceUnknown, TableUnknown)`. What every route
may answer is named once (`EVERYWHERE`). `tests/controlplane_api/test_openapi.py` holds the API to it.
"""

from collections import defaultdict
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from menura.errors import MenuraError

from controlplane_api.api.problems import MEDIA_TYPE
from controlplane_api.api.views import ProblemDocument
from controlplane_api.errors import ControlPlaneError, CrossSiteRefused, DatabaseUnavailable, RequestInvalid

Responses = dict[int | str, dict[str, Any]]

SCHEMA = "Problem"
TAGS = {
    "fleet": "Tenants, agents and sources: who is there, and how far each source is.",
    "tables": "What tables there are, how far each is, and the commands about them.",
    "dumps": "First copies of tables, and new ones.",
    "identities": "Who agents are, what enrols them, and what was done and refused.",
    "lakes": "Lakes, and what their sinks report.",
    "service": "The API itself: its health, its figures, its types of problems.",
}


def refusals(*errors: type[MenuraError]) -> Responses:
    """The answers of a route that raises these errors."""
    codes: defaultdict[int, list[str]] = defaultdict(list)
    for error in errors:
        codes[error.status if issubclass(error, ControlPlaneError) else 500].append(error.code)
    schema = {"$ref": f"#/components/schemas/{SCHEMA}"}
    return {
        status: {"description": ", ".join(sorted(found)), "content": {MEDIA_TYPE: {"schema": schema}}}
        for status, found in sorted(codes.items())
    }


EVERYWHERE = refusals(CrossSiteRefused, RequestInvalid, DatabaseUnavailable, MenuraError)


def operation_name(route: APIRoute) -> str:
    return route.name


def describe(app: FastAPI) -> None:
    """Let `app` give this document as its own; made once, when somebody asks for it."""
    app.openapi = _maker(app)  # type: ignore[method-assign]


def _maker(app: FastAPI) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    return make


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary="Menura's control plane.",
        routes=app.routes,
        tags=[{"name": name, "description": words} for name, words in TAGS.items()],
        servers=[{"url": "/", "description": "This API."}],
    )
    problem = ProblemDocument.model_json_schema(ref_template="#/components/schemas/{model}")
    document["components"]["schemas"] |= {**problem.pop("$defs"), SCHEMA: problem}
    for path in document["paths"].values():
        if "get" in path:
            path["head"] = _head(path["get"])
    return document


def _head(get: dict[str, Any]) -> dict[str, Any]:
    head = deepcopy(get)
    head["operationId"] = f"head_{get['operationId']}"
    for answer in head["responses"].values():
        answer.pop("content", None)
    return head
