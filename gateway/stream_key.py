"""The header that every message of a stream has: whose it is, and what for. Checked before anything is done for it."""

import re
from dataclasses import dataclass

from menura.naming import is_identity
from menura.protocol import LEAST_PROTOCOL_VERSION, PROTOCOL_VERSION
from menura.roles import ROLES, Role
from menura.v1.stream_pb2 import Header, RequestType

from gateway.errors import HeaderInvalid, ProtocolVersion, RequestUnsupported
from gateway.registry import AgentName

_SESSION = re.compile(r"[0-9A-Za-z-]{1,64}")
_WITHOUT_SOURCE = (Role.CONFIG, Role.HEARTBEAT)


@dataclass(frozen=True, slots=True)
class StreamKey:
    """What is equal in every message of a stream."""

    tenant: str
    agent: str
    source: str
    request_type: RequestType
    session: str

    @property
    def role(self) -> Role:
        return ROLES[self.request_type]

    @property
    def of_agent(self) -> AgentName:
        return self.tenant, self.agent

    def __str__(self) -> str:
        name = RequestType.Name(self.request_type)
        return (
            f"{self.tenant}/{self.agent}/{self.source} {name}" if self.source else f"{self.tenant}/{self.agent} {name}"
        )


def read_key(header: Header) -> StreamKey:
    role = ROLES.get(header.request_type)
    if role is None:
        raise RequestUnsupported(
            "opening a stream", f"request type {header.request_type}", remedy="Upgrade the gateway, or drop that source"
        )
    for name, value in (("tenant", header.tenant), ("agent", header.agent)):
        if not is_identity(value):
            raise HeaderInvalid(
                "reading a header", f"a {name} that is no name", remedy=f"Use a-z, 0-9, '-', '_' in {name}"
            )
    if header.source if role in _WITHOUT_SOURCE else not is_identity(header.source):
        raise HeaderInvalid(
            "reading a header", "a source that is no name, or one on a control stream", remedy="Use a-z, 0-9, '-', '_'"
        )
    if not _SESSION.fullmatch(header.session):
        raise HeaderInvalid("reading a header", "a session that is no UUID")
    return StreamKey(header.tenant, header.agent, header.source, header.request_type, header.session)


def check_protocol(spoken: int) -> None:
    if LEAST_PROTOCOL_VERSION <= spoken <= PROTOCOL_VERSION:
        return
    raise ProtocolVersion(
        "opening a stream",
        f"the agent speaks protocol {spoken}, this gateway {LEAST_PROTOCOL_VERSION} to {PROTOCOL_VERSION}",
        remedy="Upgrade the gateway first, then the agent" if spoken > PROTOCOL_VERSION else "Upgrade the agent",
    )
