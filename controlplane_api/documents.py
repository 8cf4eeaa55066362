"""Positions, problems and cartographies as the JSON objects that the database keeps, and back."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from menura import landing
from menura.landing import LandedAhead, LandedPosition
from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite

from controlplane_api.models import Base
from gateway.registry import Problem

Document = dict[str, Any]


def position_document(position: LandedPosition | None) -> Document | None:
    return None if position is None else asdict(position)


def position_from(document: Mapping[str, Any] | None) -> LandedPosition | None:
    return None if document is None else landing.position_from(document)


def ahead_document(ahead: Iterable[LandedAhead]) -> list[Document]:
    return [{"position": asdict(part.position), "tables": [list(table) for table in part.tables]} for part in ahead]


def ahead_from(documents: Iterable[Mapping[str, Any]]) -> tuple[LandedAhead, ...]:
    return tuple(map(landing.decode_ahead, documents))


def position_text(document: Mapping[str, Any] | None) -> str:
    """A position in the server's own words."""
    return landing.position_from(document).text if document else ""


def problem_document(problem: Problem | None) -> Document | None:
    return None if problem is None else asdict(problem)


def insert_into(connection: Connection, model: type[Base]) -> postgresql.Insert | sqlite.Insert:
    """An INSERT that knows ON CONFLICT, in the dialect of the connection."""
    return postgresql.insert(model) if connection.dialect.name == "postgresql" else sqlite.insert(model)
