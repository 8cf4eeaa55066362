"""Callers of the API for tests: tokens of each role, as an administrator makes them."""

from dataclasses import dataclass

from menura.instants import now_us

from controlplane_api.database import Database
from controlplane_api.identity import api_tokens
from controlplane_api.identity.callers import Grant, Role


@dataclass(frozen=True)
class Shown:
    """A token and what shows it."""

    id: str
    token: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}


def made(database: Database, role: Role, tenant: str | None = "acme", ttl_seconds: int | None = 3_600) -> Shown:
    with database.write() as connection:
        grant = Grant(role, tenant)
        token = api_tokens.create(connection, grant, f"{role}-of-tests", "a test", now_us(), ttl_seconds)
    return Shown(token.id, token.reveal())
