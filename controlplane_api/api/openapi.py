"""The API's own description: OpenAPI 3.1, with every status that a route may answer, and HEAD beside each GET.

A router or a route names the errors that it raises: `responses=refusals(SourceUnknown, TableUnknown)`. What every route
may answer is named once (`EVERYWHERE`). `tests/controlplane_api/test_openapi.py` holds the API to it.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from menura.errors import MenuraError

from controlplane_api.api.guard import READS
from controlplane_api.api.problems import MEDIA_TYPE
from controlplane_api.api.views import ProblemDocument
from controlplane_api.errors import (
    AttemptsTooMany,
    BodiesTooMany,
    CallerMissing,
    CallerUnknown,
    ControlPlaneError,
    CrossSiteRefused,
    DatabaseUnavailable,
    RequestInvalid,
    RoleMissing,
    TenantUnknown,
)
from controlplane_api.identity.callers import Need

Responses = dict[int | str, dict[str, Any]]

SCHEMA = "Problem"
TAGS = {
    "fleet": "Tenants, agents and sources: who is there, and how far each source is.",
    "tables": "What tables there are, how far each is, and the commands about them.",
    "views": "Joined views: tables of any sources, joined into one that lakes keep.",
    "search": "Rows of tables and views, found by their words and values.",
    "dumps": "First copies of tables, and new ones.",
    "identities": "Who agents and callers are, what enrols and admits them, and what was done and refused.",
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
#: of `api.gate`: to whom it does not know, and to whom it does not let through
UNKNOWN = (CallerMissing, CallerUnknown, AttemptsTooMany)
UNFIT = (RoleMissing, TenantUnknown)
BEARER, SESSION = "token", "session"
#: of all routes that the document has
Needs = Sequence[tuple[APIRoute, Need]]


def operation_name(route: APIRoute) -> str:
    return route.name


def describe(app: FastAPI, needs: Needs, cookie: str) -> None:
    """Let `app` give this document as its own; made once, when somebody asks for it. `cookie`: of a session."""
    app.openapi = _maker(app, needs, cookie)  # type: ignore[method-assign]


def _maker(app: FastAPI, needs: Needs, cookie: str) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, needs, cookie)
        return app.openapi_schema

    return make


def _document(app: FastAPI, needs: Needs, cookie: str) -> dict[str, Any]:
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
    document["components"]["securitySchemes"] = {
        BEARER: {"type": "http", "scheme": "bearer", "description": "A token of the API."},
        SESSION: {
            "type": "apiKey", "in": "cookie", "name": cookie,
            "description": "Of a browser; commands have X-Menura-Page-Token too.",
        },
    }  # fmt: skip
    for route, need in needs:
        _say_need(document["paths"][route.path_format], route, need)
    for path in document["paths"].values():
        if "get" in path:
            path["head"] = _head(path["get"])
    return document


def _say_need(path: dict[str, Any], route: APIRoute, need: Need) -> None:
    """That a route wants to know its caller, and how it answers whom it refuses."""
    if need is Need.NOBODY:
        return
    unfit = () if need is Need.ANYBODY_KNOWN else UNFIT if "{tenant}" in route.path_format else (RoleMissing,)
    for method in route.methods or ():
        operation = path[method.lower()]
        operation["security"] = [{BEARER: []}, {SESSION: []}]
        body = () if method in READS else (BodiesTooMany,)
        for status, answer in refusals(*UNKNOWN, *unfit, *body).items():
            known = operation["responses"].setdefault(str(status), answer)
            known["description"] = ", ".join(
                sorted({*known["description"].split(", "), *answer["description"].split(", ")})
            )


def _head(get: dict[str, Any]) -> dict[str, Any]:
    head = deepcopy(get)
    head["operationId"] = f"head_{get['operationId']}"
    for answer in head["responses"].values():
        answer.pop("content", None)
    return head
