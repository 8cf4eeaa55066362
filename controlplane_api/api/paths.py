"""What a path names: tenant, source, table, view, dump or lake. Who may see it `api.gate` has decided.

Paths arrive undecoded (see `guard`), so every segment is decoded here, once.
"""

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import unquote

from fastapi import Depends, Path, Request
from menura.bounds import MAX_NAME_CHARS
from menura.naming import is_identity, named_by
from menura.views.definition import is_view_name

from controlplane_api.api.requests import IDENTITY_PATTERN, NAME_PATTERN, VIEW_NAME_PATTERN
from controlplane_api.database import Database
from controlplane_api.errors import RequestInvalid
from controlplane_api.identity.callers import Caller

# Said to callers, and checked below: a segment comes undecoded, so that no pattern can be laid on it.
IDENTITY_SEGMENT = Path(json_schema_extra={"pattern": IDENTITY_PATTERN, "minLength": 1, "maxLength": 63})
NAME_SEGMENT = Path(
    description="A name of the source's; `.` and `..`, which URLs fold, are written `~.` and `~..`.",
    json_schema_extra={"pattern": NAME_PATTERN, "minLength": 1, "maxLength": MAX_NAME_CHARS},
)
Identity = Annotated[str, IDENTITY_SEGMENT]
Name = Annotated[str, NAME_SEGMENT]
ViewSegment = Annotated[str, Path(json_schema_extra={"pattern": VIEW_NAME_PATTERN, "minLength": 1, "maxLength": 63})]


def current_tenant(tenant: Identity) -> str:
    """The path's; `api.gate` has let the caller through to it."""
    return _identity("tenant", tenant)


def current_caller(request: Request) -> Caller:
    caller = request.state.caller
    if not isinstance(caller, Caller):
        raise TypeError("the gate sets state.caller")
    return caller


@dataclass(frozen=True, slots=True)
class Command:
    """Who asks for something, and what the audit log shall say of it once it is done."""

    caller: Caller
    #: of the path; empty where it names none
    tenant: str
    #: empty: the route says it itself, or there is nothing to be said
    action: str
    found: str


def current_command(request: Request) -> Command:
    command = request.state.command
    if not isinstance(command, Command):
        raise TypeError("the gate sets state.command")
    return command


def named_source(source: Identity) -> str:
    return _identity("source", source)


def named_lake(lake: Identity) -> str:
    return _identity("lake", lake)


def named_agent(agent: Identity) -> str:
    return _identity("agent", agent)


def named_api_token(api_token: Identity) -> str:
    return _identity("token", api_token)


def named_token(token: Identity) -> str:
    return _identity("token", token)


def named_table(database: Name, table: Name) -> tuple[str, str]:
    return named_by(_name("database", database)), named_by(_name("table", table))


def named_dump(dump: Name) -> str:
    return _name("dump", dump)


def named_view(view: ViewSegment) -> str:
    name = _name("view", view)
    if not is_view_name(name):
        raise RequestInvalid(
            "reading a path", "the view is not a name", remedy="Use 1 to 63 of a-z, 0-9 and '_', a letter first."
        )
    return name


def named_problem(name: Name) -> str:
    return _name("problem", name)


def named_rule(rule: Name) -> str:
    return _name("rule", rule)


def named_operation(operation: Name) -> str:
    return _name("operation", operation)


def named_release(release: Name) -> str:
    return _name("version", release)


def named_package(package: Name) -> str:
    return _name("package", package)


def current_database(request: Request) -> Database:
    database = request.state.database
    if not isinstance(database, Database):
        raise TypeError("the gate sets state.database")
    return database


CurrentCaller = Annotated[Caller, Depends(current_caller)]
TenantName = Annotated[str, Depends(current_tenant)]
SourceName = Annotated[str, Depends(named_source)]
AgentName = Annotated[str, Depends(named_agent)]
ReleaseVersion = Annotated[str, Depends(named_release)]
PackageFile = Annotated[str, Depends(named_package)]
ApiTokenName = Annotated[str, Depends(named_api_token)]
TokenName = Annotated[str, Depends(named_token)]
LakeName = Annotated[str, Depends(named_lake)]
TableName = Annotated[tuple[str, str], Depends(named_table)]
DumpName = Annotated[str, Depends(named_dump)]
JoinedViewName = Annotated[str, Depends(named_view)]
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
