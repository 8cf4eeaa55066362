"""Versions of the agent: their packages, and rollouts that give them to agents."""

import base64
import binascii
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query
from menura.instants import now_us
from sqlalchemy import Connection

from controlplane_api import agent_packages, rollouts
from controlplane_api.api import upgrade_queries
from controlplane_api.api.openapi import refusals
from controlplane_api.api.pages import Cursor, Limit
from controlplane_api.api.paths import ControlDatabase, PackageFile, ReleaseVersion, TenantName
from controlplane_api.api.requests import (
    PackagePart,
    ReleaseAdd,
    ReleaseCommand,
    RolloutBack,
    RolloutCommand,
    RolloutOrder,
    RolloutSkip,
)
from controlplane_api.api.views import (
    PieceStored,
    ReleaseRemoved,
    Releases,
    ReleaseView,
    RolloutAgents,
    RolloutPlan,
    RolloutShown,
    RolloutView,
)
from controlplane_api.api.writing import KEYED, Write, Writing
from controlplane_api.errors import (
    PackageInvalid,
    ReleaseInUse,
    ReleasesTooMany,
    ReleaseUnknown,
    RequestInvalid,
    RolloutRuns,
    RolloutUnknown,
    UploadOutOfOrder,
)
from controlplane_api.identity import audit
from controlplane_api.models import AnyRow
from controlplane_api.rollout_states import AgentState
from controlplane_api.tenants import ensure_tenants

router = APIRouter(prefix="/api/v1/tenants/{tenant}", tags=["upgrades"])

States = Annotated[list[AgentState] | None, Query(max_length=len(AgentState), description="Of agents; none: all.")]
_COMMANDS = refusals(RolloutUnknown, *KEYED)


@router.get("/agent-releases")
def get_releases(tenant: TenantName, database: ControlDatabase) -> Releases:
    """Versions of the agent that can be ordered, or whose upload is not over, the newest first."""
    with database.read() as connection:
        owner = upgrade_queries.tenant_id(connection, tenant)
        return Releases(releases=upgrade_queries.releases(connection, owner))


@router.post("/agent-releases", responses=refusals(PackageInvalid, ReleasesTooMany, *KEYED))
def add_release(tenant: TenantName, request: ReleaseAdd, write: Write) -> ReleaseView:
    """Announce a version: SHA256SUMS, its signature and the sizes of its files, whose bytes come next. Announced again
    with the same sums, it goes on: the answer says how much of each file is here."""
    sums, signature = _decoded(request.sums), _decoded(request.signature)

    def act(connection: Connection) -> ReleaseView:
        owner = ensure_tenants(connection, {tenant}, now_us())[tenant]
        version = agent_packages.begin(connection, owner, sums, signature, request.sizes, now_us())
        audit.record(connection, tenant, write.actor, "add release", found=f"{version}, {len(request.sizes)} packages")
        return upgrade_queries.releases(connection, owner, version)[0]

    return write.run(ReleaseView, act)


@router.put(
    "/agent-releases/{release}/packages/{package}",
    responses=refusals(ReleaseUnknown, PackageInvalid, UploadOutOfOrder, *KEYED),
)
def put_package_part(
    tenant: TenantName, release: ReleaseVersion, package: PackageFile, request: PackagePart, write: Write
) -> PieceStored:
    """The next bytes of a file, at most 1 MiB, whole pieces of 128 KiB but at its end. Bytes that are here stay."""
    data = _decoded(request.data)

    def act(connection: Connection) -> PieceStored:
        owner = upgrade_queries.tenant_id(connection, tenant)
        reached = agent_packages.append(connection, owner, release, package, request.offset, data, now_us())
        return PieceStored(received_bytes=reached)

    return write.run(PieceStored, act)


@router.post("/agent-releases/{release}/complete", responses=refusals(ReleaseUnknown, PackageInvalid, *KEYED))
def complete_release(
    tenant: TenantName, release: ReleaseVersion, _request: ReleaseCommand, database: ControlDatabase, write: Write
) -> ReleaseView:
    """All files have come: their sums are compared, and the version can be ordered. A file with another sum goes."""
    with database.read() as connection:
        owner = upgrade_queries.tenant_id(connection, tenant)
        compared = agent_packages.compare(connection, owner, release)

    def act(connection: Connection) -> ReleaseView:
        if agent_packages.settle(connection, compared, now_us()):
            wrong = compared.wrong
            found = release if wrong is None else f"{release}: bytes of {wrong.name} had another sum, and were removed"
            audit.record(connection, tenant, write.actor, "complete release", found=found)
        return upgrade_queries.releases(connection, owner, release)[0]

    answer = write.run(ReleaseView, act)
    for file in () if answer.complete else answer.packages:
        if file.received_bytes < file.size_bytes:
            raise agent_packages.wrong_sum(file.name)
    return answer


@router.delete("/agent-releases/{release}", responses=refusals(ReleaseUnknown, ReleaseInUse, *KEYED))
def remove_release(
    tenant: TenantName, release: ReleaseVersion, _request: ReleaseCommand, write: Write
) -> ReleaseRemoved:
    """Agents that run it stay as they are; it can't be ordered, and is no way back."""

    def act(connection: Connection) -> ReleaseRemoved:
        agent_packages.remove(connection, upgrade_queries.tenant_id(connection, tenant), release)
        audit.record(connection, tenant, write.actor, "remove release", found=release)
        return ReleaseRemoved(version=release)

    return write.run(ReleaseRemoved, act)


@router.get("/rollout")
def get_rollout(tenant: TenantName, database: ControlDatabase) -> RolloutShown:
    """The newest one."""
    with database.read() as connection:
        return RolloutShown(rollout=upgrade_queries.shown(connection, upgrade_queries.tenant_id(connection, tenant)))


@router.get("/rollout/agents", responses=refusals(RolloutUnknown))
def get_rollout_agents(
    tenant: TenantName,
    database: ControlDatabase,
    state: States = None,
    cursor: Cursor = "",
    limit: Limit = 100,
) -> RolloutAgents:
    """Agents of the newest rollout by name, each with the reason why it is where it is."""
    with database.read() as connection:
        owner = upgrade_queries.tenant_id(connection, tenant)
        return upgrade_queries.agents(connection, owner, state or [], cursor, limit)


@router.post("/rollout-plans", responses=refusals(RequestInvalid))
def plan_rollout(tenant: TenantName, request: RolloutOrder, database: ControlDatabase) -> RolloutPlan:
    """Who would get the version, and who can't have it and why. Nothing is changed."""
    with database.read() as connection:
        return upgrade_queries.plan(connection, upgrade_queries.tenant_id(connection, tenant), _order(request))


@router.post("/rollout/start", responses=refusals(ReleaseUnknown, RolloutRuns, *KEYED))
def start_rollout(tenant: TenantName, request: RolloutOrder, write: Write) -> RolloutView:
    """Give agents the version, group by group; refused while another rollout of the tenant is not over."""

    def act(connection: Connection) -> RolloutView:
        owner = upgrade_queries.tenant_id(connection, tenant)
        number = rollouts.start(connection, owner, _order(request), write.actor, now_us())
        groups = ", ".join(group.name for group in request.groups) or "a canary, then the rest"
        audit.record(connection, tenant, write.actor, "start rollout", found=f"{number}: {request.version} to {groups}")
        return upgrade_queries.rollout(connection, number)

    return write.run(RolloutView, act)


@router.post("/rollout/pause", responses=_COMMANDS)
def pause_rollout(tenant: TenantName, _request: RolloutCommand, write: Write) -> RolloutView:
    """Offer nothing more; what a host has in work ends as it ends."""
    return _steered(tenant, write, rollouts.pause)


@router.post("/rollout/resume", responses=_COMMANDS)
def resume_rollout(tenant: TenantName, _request: RolloutCommand, write: Write) -> RolloutView:
    """Go on after a pause or a halt; agents that have failed are tried again, but for those that are skipped."""
    return _steered(tenant, write, rollouts.resume)


@router.post("/rollout/cancel", responses=_COMMANDS)
def cancel_rollout(tenant: TenantName, _request: RolloutCommand, write: Write) -> RolloutView:
    """End it. Each agent stays at what it runs, and what a host has in work ends as it ends."""
    return _steered(tenant, write, rollouts.cancel)


@router.post("/rollout/back", responses=_COMMANDS)
def roll_back(tenant: TenantName, _request: RolloutBack, write: Write) -> RolloutView:
    """Give all agents that the newest rollout has changed the version from before, by a rollout of its own."""

    def act(connection: Connection) -> RolloutView:
        owner = upgrade_queries.tenant_id(connection, tenant)
        return upgrade_queries.rollout(connection, rollouts.back(connection, owner, write.actor, now_us()))

    return write.run(RolloutView, act)


@router.post("/rollout/skip", responses=_COMMANDS)
def skip_rollout_agents(tenant: TenantName, request: RolloutSkip, write: Write) -> RolloutView:
    """Wait for none of these agents, and count no failure of theirs. They have their order when they can."""

    def act(connection: Connection) -> RolloutView:
        row, agents = rollouts.skip(connection, upgrade_queries.tenant_id(connection, tenant), request.agents)
        if agents == 0:
            raise RequestInvalid("skipping agents", "the rollout has none of this name", data="Nothing was changed.")
        found = f"{row.id}: {request.agents}, {agents} agents"
        audit.record(connection, tenant, write.actor, "skip rollout agents", found=found)
        return upgrade_queries.rollout(connection, row.id)

    return write.run(RolloutView, act)


def _steered(tenant: str, write: Writing, steer: Callable[[Connection, int], AnyRow]) -> RolloutView:
    """The tenant's rollout once `steer` has changed it."""

    def act(connection: Connection) -> RolloutView:
        row = steer(connection, upgrade_queries.tenant_id(connection, tenant))
        return upgrade_queries.rollout(connection, row.id)

    return write.run(RolloutView, act)


def _order(request: RolloutOrder) -> rollouts.Order:
    names = [group.name for group in request.groups]
    if len(set(names)) != len(names):
        raise RequestInvalid("reading a rollout", "two groups have one name", data="Nothing was changed.")
    return rollouts.Order(
        version=request.version,
        groups=tuple(rollouts.Group(group.name, tuple(group.agents)) for group in request.groups),
        wait_us=request.wait_seconds * 1_000_000,
        at_once=request.at_once,
        most_failures=request.most_failures,
        return_us=request.within_seconds * 1_000_000,
        roll_back=request.roll_back,
    )


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as strange:
        raise RequestInvalid("reading bytes", "they are no base64", data="Nothing was changed.") from strange
