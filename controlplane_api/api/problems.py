"""Errors as HTTP answers: RFC 9457 problem details, with the fields that every error of Menura has."""

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from menura.errors import MenuraError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from controlplane_api.errors import ControlPlaneError, PathUnknown, RequestInvalid

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
MAX_COMPLAINTS = 5


def problem_facts(error: MenuraError) -> dict[str, Any]:
    """The fields of an error that say something."""
    fields = ("doing", "found", "data", "remedy", "source", "database", "table", "position")
    return {"code": error.code, **{name: value for name in fields if (value := getattr(error, name))}}


def problem_response(
    error: MenuraError, status: int | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    if status is None:
        status = error.status if isinstance(error, ControlPlaneError) else 500
    body = {
        "type": f"urn:menura:problem:{error.code.lower().replace('_', '-')}",
        "title": error.code.replace("_", " ").capitalize(),
        "status": status,
        "detail": str(error),
        **problem_facts(error),
    }
    return JSONResponse(body, status, dict(headers or {}), media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Every failure of `app` becomes a problem document."""
    app.add_exception_handler(MenuraError, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _unrouted)
    app.add_exception_handler(Exception, _defect)


async def _known(_request: Request, error: Exception) -> Response:
    if not isinstance(error, MenuraError):
        raise error
    if not isinstance(error, ControlPlaneError) or error.status >= 500:
        logger.error("request failed: %s", error)
    return problem_response(error)


async def _invalid(_request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    # Where and what, never the input itself.
    complaints = [
        f"{'.'.join(str(part) for part in complaint['loc'])}: {complaint['msg']}"
        for complaint in error.errors()[:MAX_COMPLAINTS]
    ]
    return problem_response(
        RequestInvalid(
            "reading a request",
            "; ".join(complaints),
            data="Nothing was changed.",
            remedy="See /v1/openapi.json for what it takes.",
        )
    )


async def _unrouted(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    return unrouted_response(request.method, error.status_code, error.headers)


def unrouted_response(method: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    found = "no such path" if status == 404 else f"{method} does not apply here"
    unknown = PathUnknown("answering a request", found, remedy="See /v1/openapi.json for what there is.")
    return problem_response(unknown, status, headers)


async def _defect(_request: Request, _error: Exception) -> Response:
    # The server logs it: Starlette raises it again after this answer.
    return problem_response(
        MenuraError("answering a request", "a defect of the API; its log has the details"), status=500
    )
