"""What a path names: tenant, source, table, dump or lake. Who may see it `api.gate` has decided.

Paths arrive undecoded (see `guard`), so every segment is decoded here, once.
"""

from typing import Annotated
from urllib.parse import unquote

from fastapi import Depends, Path, Request
from menura.bounds import MAX_NAME_CHARS
from menura.naming import is_identity

from controlplane_api.database import Database
from controlplane_api.errors import RequestInvalid
from controlplane_api.identity.callers import Caller


def current_tenant(tenant: Annotated[str, Path()]) -> str:
    """The path's; `api.gate` has let the caller through to it."""
    return _identity("tenant", tenant)


def current_caller(request: Request) -> Caller:
    caller = request.state.caller
    if not isinstance(caller, Caller):
        raise TypeError("the gate sets state.caller")
    return caller


def named_source(source: Annotated[str, Path()]) -> str:
    return _identity("source", source)


def named_lake(lake: Annotated[str, Path()]) -> str:
    return _identity("lake", lake)


def named_agent(agent: Annotated[str, Path()]) -> str:
    return _identity("agent", agent)


def named_api_token(api_token: Annotated[str, Path()]) -> str:
    return _identity("token", api_token)


def named_token(token: Annotated[str, Path()]) -> str:
    return _identity("token", token)


def named_table(database: Annotated[str, Path()], table: Annotated[str, Path()]) -> tuple[str, str]:
    return _name("database", database), _name("table", table)


def named_dump(dump: Annotated[str, Path()]) -> str:
    return _name("dump", dump)


def current_database(request: Request) -> Database:
    """Of a command: its transaction has its entry in the audit log (`api.gate`)."""
    database = request.state.database
    if not isinstance(database, Database):
        raise TypeError("the gate sets state.database")
    return database


CurrentCaller = Annotated[Caller, Depends(current_caller)]
TenantName = Annotated[str, Depends(current_tenant)]
SourceName = Annotated[str, Depends(named_source)]
AgentName = Annotated[str, Depends(named_agent)]
ApiTokenName = Annotated[str, Depends(named_api_token)]
TokenName = Annotated[str, Depends(named_token)]
LakeName = Annotated[str, Depends(named_lake)]
TableName = Annotated[tuple[str, str], Depends(named_table)]
DumpName = Annotated[str, Depends(named_dump)]
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
