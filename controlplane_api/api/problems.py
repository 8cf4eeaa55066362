"""Errors as HTTP answers: RFC 9457 problem details, with the fields that every error of Menura has.

`type` is the address of a page of this API (`problem_types`), and never changes. `remedy` is the fix in this one case.
`errors` has, of a request that is invalid, what is wrong and where: a JSON pointer into the body, or a parameter.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from menura.errors import MenuraError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from controlplane_api.api.problem_types import type_of
from controlplane_api.errors import ControlPlaneError, MethodUnknown, PathUnknown, RequestError, RequestInvalid

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
MAX_COMPLAINTS = 5
#: of a request's state: the code of an error that is none of who asks
FAILURE = "failure"
_SEE = "See /api/v1/openapi.json for what it takes."


def problem_facts(error: MenuraError) -> dict[str, Any]:
    """The fields of an error that say something."""
    fields = ("doing", "found", "data", "remedy", "source", "database", "table", "position")
    return {"code": error.code, **{name: value for name in fields if (value := getattr(error, name))}}


def problem_response(
    error: MenuraError,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
    errors: Sequence[Mapping[str, object]] = (),
) -> Response:
    if status is None:
        status = error.status if isinstance(error, ControlPlaneError) else 500
    body = {
        "type": type_of(error.code),
        "title": error.code.replace("_", " ").capitalize(),
        "status": status,
        "detail": str(error),
        **problem_facts(error),
        **({"errors": list(errors)} if errors else {}),
    }
    # RFC 9110 wants a 401 to say how to come with what is missing.
    challenge = {"www-authenticate": "Bearer"} if status == 401 else {}
    seconds = error.retry_after_seconds if isinstance(error, ControlPlaneError) else 0
    again = {"retry-after": str(seconds)} if seconds else {}
    return JSONResponse(body, status, {**challenge, **again, **(headers or {})}, media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Every failure of `app` becomes a problem document."""
    app.add_exception_handler(MenuraError, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _unreadable)
    app.add_exception_handler(Exception, _defect)


async def _known(request: Request, error: Exception) -> Response:
    if not isinstance(error, MenuraError):
        raise error
    if not isinstance(error, ControlPlaneError) or error.status >= 500:
        logger.error("request failed: %s", error)
        request.scope.setdefault("state", {})[FAILURE] = error.code
    return problem_response(error, errors=error.complaints if isinstance(error, RequestError) else ())


async def _invalid(_request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    # Where and what, never the input itself.
    found = error.errors()[:MAX_COMPLAINTS]
    words = "; ".join(f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in found)
    invalid = RequestInvalid("reading a request", words, data="Nothing was changed.", remedy=_SEE)
    return problem_response(invalid, errors=[_complaint(each, error.body) for each in found])


def _complaint(found: Mapping[str, Any], body: object) -> dict[str, str]:
    place, *path = found["loc"]
    if place == "body":
        return {"detail": found["msg"], "pointer": pointer(path, body, missing=found["type"] == "missing")}
    return {"detail": found["msg"], "parameter": str(path[0]) if path else "", "in": str(place)}


def pointer(path: Sequence[str | int], body: object, *, missing: bool = False) -> str:
    """A JSON pointer, as a fragment. The path has names of alternatives too, which the body does not have.

    >>> pointer(["tables", "list[NamedTable]", 1, "a/b"], {"tables": [{}, {"a/b": 1}]})
    '#/tables/1/a~1b'
    >>> pointer(["start", "PositionStart", "position"], {"start": {}}, missing=True)
    '#/start/position'
    """
    shown: list[str | int] = []
    here = body
    for number, part in enumerate(path):
        if isinstance(here, dict) and part in here:
            here = here[part]
        elif isinstance(here, list) and part in range(len(here)):
            here = here[int(part)]
        elif not (missing and number == len(path) - 1):
            continue
        shown.append(part)
    return "#" + "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in shown)


async def _unreadable(_request: Request, error: Exception) -> Response:
    """What the framework refuses by itself: bodies that are no JSON at all. `gate` knows all paths and methods."""
    if not isinstance(error, HTTPException):
        raise error
    refused = RequestInvalid(
        "reading a request", "body: it can't be read as JSON", data="Nothing was changed.", remedy=_SEE
    )
    return problem_response(refused, errors=[{"detail": refused.found, "pointer": "#"}])


def unrouted_response(method: str, methods: Collection[str]) -> Response:
    """Of a path that no route has, or none with this method. `methods`: those that it has; none: it is not there."""
    doing, remedy = "answering a request", "See /api/v1/openapi.json."
    if not methods:
        return problem_response(PathUnknown(doing, "no such path", remedy=remedy))
    allowed = sorted({*methods, "HEAD"} if "GET" in methods else methods)
    refused = MethodUnknown(doing, f"{method} does not apply here", remedy=remedy)
    return problem_response(refused, headers={"allow": ", ".join(allowed)})


async def _defect(_request: Request, _error: Exception) -> Response:
    # The server logs it: Starlette raises it again after this answer.
    return problem_response(
        MenuraError("answering a request", "a defect of the API; its log has the details"), status=500
    )
