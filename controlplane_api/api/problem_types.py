"""The types of problems that the API answers with: each is a path of the API with a page that says cause and fix."""

from collections.abc import Iterator

from menura.errors import MenuraError

from controlplane_api.api.views import ProblemType
from controlplane_api.errors import (
    ControlPlaneError,
    DatabaseRefused,
    DatabaseUnavailable,
    ProblemUnknown,
    RequestError,
)

PATH = "/api/v1/problems"


def type_of(code: str) -> str:
    """
    >>> type_of("SOURCE_UNKNOWN")
    '/api/v1/problems/source-unknown'
    """
    return f"{PATH}/{code.lower().replace('_', '-')}"


def problem_types() -> list[ProblemType]:
    """All of them, by name."""
    known: list[type[ControlPlaneError]] = [DatabaseRefused, DatabaseUnavailable, *_below(RequestError)]
    defect = ProblemType(
        type=type_of(MenuraError.code),
        code=MenuraError.code,
        title="Internal",
        status=500,
        cause="A defect of the API.",
        fix="Report it, with what the API's log says.",
    )
    return sorted([defect, *map(_type, known)], key=lambda each: each.type)


def problem_type(name: str) -> ProblemType:
    """Raises `ProblemUnknown`."""
    for each in problem_types():
        if each.type == f"{PATH}/{name}":
            return each
    raise ProblemUnknown(
        "looking for a type of problem", "there is none of this name", remedy=f"See {PATH} for those that there are."
    )


def _type(error: type[ControlPlaneError]) -> ProblemType:
    return ProblemType(
        type=type_of(error.code),
        code=error.code,
        title=error.code.replace("_", " ").capitalize(),
        status=error.status,
        cause=" ".join((error.__doc__ or "").split()),
        fix=error.fix,
    )


def _below(error: type[ControlPlaneError]) -> Iterator[type[ControlPlaneError]]:
    for below in error.__subclasses__():
        yield below
        yield from _below(below)
