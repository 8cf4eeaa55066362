"""What a path names: tenant, source, table, dump or lake. The one place that decides who may see what.

Paths arrive undecoded (see `guard`), so every segment is decoded here, once.
"""

from typing import Annotated
from urllib.parse import unquote

from fastapi import Depends, Path, Request
from menura.bounds import MAX_NAME_CHARS
from menura.naming import is_identity

from controlplane_api.api.requests import IDENTITY_PATTERN, NAME_PATTERN
from controlplane_api.database import Database
from controlplane_api.errors import RequestInvalid

# Said to callers, and checked below: a segment comes undecoded, so that no pattern can be laid on it.
IDENTITY_SEGMENT = Path(json_schema_extra={"pattern": IDENTITY_PATTERN, "minLength": 1, "maxLength": 63})
NAME_SEGMENT = Path(json_schema_extra={"pattern": NAME_PATTERN, "minLength": 1, "maxLength": MAX_NAME_CHARS})
Identity = Annotated[str, IDENTITY_SEGMENT]
Name = Annotated[str, NAME_SEGMENT]


def current_tenant(tenant: Identity) -> str:
    """The tenant whose data this request may see: the path's, until identities come and are checked here."""
    return _identity("tenant", tenant)


def named_source(source: Identity) -> str:
    return _identity("source", source)


def named_lake(lake: Identity) -> str:
    return _identity("lake", lake)


def named_agent(agent: Identity) -> str:
    return _identity("agent", agent)


def named_token(token: Identity) -> str:
    return _identity("token", token)


def named_table(database: Name, table: Name) -> tuple[str, str]:
    return _name("database", database), _name("table", table)


def named_dump(dump: Name) -> str:
    return _name("dump", dump)


def named_problem(name: Name) -> str:
    return _name("problem", name)


def named_rule(rule: Name) -> str:
    return _name("rule", rule)


def named_operation(operation: Name) -> str:
    return _name("operation", operation)


def current_database(request: Request) -> Database:
    database = request.app.state.database
    if not isinstance(database, Database):
        raise TypeError("create_app sets state.database")
    return database


TenantName = Annotated[str, Depends(current_tenant)]
SourceName = Annotated[str, Depends(named_source)]
AgentName = Annotated[str, Depends(named_agent)]
TokenName = Annotated[str, Depends(named_token)]
LakeName = Annotated[str, Depends(named_lake)]
TableName = Annotated[tuple[str, str], Depends(named_table)]
DumpName = Annotated[str, Depends(named_dump)]
ProblemName = Annotated[str, Depends(named_problem)]
RuleName = Annotated[str, Depends(named_rule)]
OperationName = Annotated[str, Depends(named_operation)]
ControlDatabase = Annotated[Database, Depends(current_database)]


def _identity(what: str, segment: str) -> str:
    name = _name(what, segment)
    if not is_identity(name):
        raise RequestInvalid(
            "reading a path", f"the {what} is not a name", remedy="Use 1 to 63 of a-z, 0-9, '-' and '_'."
        )
    return name


def _name(what: str, segment: str) -> str:
    try:
        name = unquote(segment, errors="strict")
    except UnicodeDecodeError as broken:
        raise RequestInvalid("reading a path", f"the {what}'s name is not UTF-8") from broken
    if not name or len(name) > MAX_NAME_CHARS or "\x00" in name:
        raise RequestInvalid("reading a path", f"the {what}'s name is empty, too long or has a NUL")
    return name
