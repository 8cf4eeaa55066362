"""A Control_Config stream's share of upgrades: what the agent runs, what it shall run, and its bytes.

Comes in: EffectiveVersion, PackageRequest. Goes out: DesiredVersion, when the agent has said its version once on this
stream and its order is another one than was sent, or is withdrawn; PackagePiece, for packages of that order alone. A
report that the database could not take is told again with the next look: an order may wait for it. One report is
written at a time, since two of them would be written in either order. All else begins anew with the next stream.
"""

import asyncio
import logging

from menura.bounds import MAX_NAME_CHARS, clean_text
from menura.error_message import as_message
from menura.instants import now_us
from menura.v1.config_pb2 import AgentPackage, DesiredVersion, EffectiveVersion, PackagePiece, PackageRequest
from menura.v1.stream_pb2 import StreamRequest

from gateway.errors import PackageNotDesired
from gateway.landing_parts import LandingParts
from gateway.presence import AgentSession
from gateway.quotas import ERROR_ROWS, VERSION_ROWS
from gateway.registry import AgentName, PackageDesired, VersionDesired, VersionSeen
from gateway.stream import AgentStream
from gateway.wire.translation import version_seen

logger = logging.getLogger(__name__)


class Upgrade:
    def __init__(self, stream: AgentStream, parts: LandingParts, agent: AgentSession) -> None:
        self._stream = stream
        self._parts = parts
        self._name: AgentName = agent.name
        self._session = agent.session
        #: what the agent said last, with when; None: it has said nothing
        self._said: tuple[VersionSeen, int] | None = None
        self._is_recorded = True
        self._recording = asyncio.Lock()
        #: generation of the order that was looked up last; 0: none
        self._looked = 0
        self._sent: VersionDesired | None = None
        self._is_named = False

    async def take(self, state: EffectiveVersion) -> None:
        self._stream.quota.rows.owe(VERSION_ROWS)
        at_us = now_us()
        self._said, self._is_recorded = (version_seen(state, at_us, self._session), at_us), False
        await self._record()

    async def follow(self) -> None:
        """At each look: what is desired is sent, what was not recorded is recorded."""
        if self._said is None:
            return
        await self._record()
        generation = self._parts.orders.current(self._name)
        if generation is None or generation == self._looked:
            return
        desired = await self._parts.ask(self._name, self._parts.registry.desired_version, self._name)
        self._looked, self._sent = generation, desired
        if desired is None:
            return  # it is over, and nothing of it is asked of the agent any more
        self._looked = desired.generation
        await self._stream.send(StreamRequest(desired_version=_message(desired)))
        said = "command sent: %s: desired_version %s, generation %s"
        version = "none" if desired.package is None else desired.package.version
        self._log(logging.INFO, said, self._stream.key, version, desired.generation)

    async def give(self, request: PackageRequest) -> None:
        """A piece of a package that the agent shall run, or an error; the stream goes on."""
        order = self._sent
        if order is None or self._parts.orders.current(self._name) not in (None, order.generation):
            self._refuse("nothing is ordered for it now")
            return
        ordered = [one for one in (order.package, order.way_back) if one is not None]
        package = next((one for one in ordered if one.sha256 == request.sha256), None)
        if package is None or request.offset >= package.size_bytes:
            self._refuse(
                f"{clean_text(request.sha256, MAX_NAME_CHARS)!r} from {request.offset} is nothing of its order"
            )
            return
        packages = self._parts.packages
        if not packages.may_have(self._name, order.generation, sum(one.size_bytes for one in ordered)):
            self._refuse("it has had the packages of its order many times")
            return
        call, offset = self._parts.registry.package_piece, request.offset

        def read() -> bytes:
            return call(package.package_id, offset, package.size_bytes)

        async with packages.piece(self._name, order.generation, read) as data:
            if data:
                piece = PackagePiece(sha256=package.sha256, offset=offset, data=data)
                await self._stream.send(StreamRequest(package_piece=piece))
                self._parts.metrics.menura_upgrade_sent_bytes_total += len(data)
                return
        self._refuse(f"package {package.name} is gone")

    def _refuse(self, found: str) -> None:
        self._stream.quota.rows.owe(ERROR_ROWS)
        self._parts.metrics.menura_upgrade_refused_requests_total += 1
        refused = PackageNotDesired(
            "sending a package to an agent",
            found,
            data="Nothing was sent; the agent runs on as it is",
            remedy="The agent goes by what it shall run next",
        )
        if not self._is_named:
            self._is_named = True  # once for a stream, however often it asks
            self._log(logging.WARNING, "package refused: %s: %s", self._stream.key, refused)
        self._stream.post(StreamRequest(error=as_message(refused)))

    async def _record(self) -> None:
        """What was said last, if the database has it not yet."""
        async with self._recording:
            if self._is_recorded:
                return
            assert self._said is not None
            said = seen, at_us = self._said
            call = self._parts.registry.record_version
            known = await self._parts.reports.tell(self._name, lambda: call(self._name, seen, at_us))
            if self._said == said:
                self._is_recorded = known is True

    def _log(self, level: int, message: str, *values: object) -> None:
        self._parts.log_lines.write(logger, level, "/".join(self._name), message, *values)


def _message(desired: VersionDesired) -> DesiredVersion:
    return DesiredVersion(
        generation=desired.generation, package=_package(desired.package), way_back=_package(desired.way_back)
    )


def _package(one: PackageDesired | None) -> AgentPackage | None:
    return (
        None
        if one is None
        else AgentPackage(
            version=one.version,
            name=one.name,
            sha256=one.sha256,
            size_bytes=one.size_bytes,
            sums=one.sums,
            signature=one.signature,
        )
    )
