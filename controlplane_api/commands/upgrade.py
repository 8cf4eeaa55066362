"""`menura upgrade`: versions of the agent and rollouts, from a terminal."""

import base64
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from controlplane_api import agent_packages
from controlplane_api.api.client import ApiClient
from controlplane_api.api.views import (
    Releases,
    ReleaseView,
    RolloutAgentView,
    RolloutPlan,
    RolloutReport,
    RolloutShown,
    RolloutView,
)
from controlplane_api.commands.access import connect
from controlplane_api.commands.grid import Grid
from controlplane_api.commands.options import (
    DEFAULT_API,
    DEFAULT_TENANT,
    UNKNOWN,
    Api,
    AsJson,
    Tenant,
    count,
    duration,
    forced_group,
    moment,
    plain,
    put,
    seconds_of,
)
from controlplane_api.commands.output import document
from controlplane_api.errors import PackageInvalid, RequestInvalid
from controlplane_api.rollout_states import AgentState, Reason

MOST_SECONDS = 30 * 86_400
SUMS, SIGNATURE = "SHA256SUMS", "SHA256SUMS.sig"
app = forced_group("Give agents another version, group by group.")


@app.command()
def add(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What make packages has written.")],
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Upload a version's packages; broken off, the same command goes on."""
    files = _files(folder)
    with connect(api, tenant) as client:
        sizes = {name: path.stat().st_size for name, path in files.items()}
        sums, signature = (base64.b64encode(_read(folder / name)).decode() for name in (SUMS, SIGNATURE))
        release = client.add_release(sums, signature, sizes)
        for package in () if release.complete else release.packages:
            _upload(client, release.version, files[package.name], package.received_bytes)
        release = client.complete_release(release.version)
    _put_releases([release], as_json=as_json)


def _files(folder: Path) -> dict[str, Path]:
    """The packages that its SHA256SUMS names."""
    names = [name for name in agent_packages.read_sums(_read(folder / SUMS)) if agent_packages.parse_name(name)]
    for name in names:
        if not (folder / name).is_file():
            raise _unusable(folder / name, "is not there")
    return {name: folder / name for name in names}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as unreadable:
        raise _unusable(path, str(unreadable.strerror)) from unreadable


def _unusable(path: Path, found: str) -> PackageInvalid:
    return PackageInvalid(
        "reading the packages",
        f"{path}: {found}",
        data="Nothing of it is offered to agents.",
        remedy="Name the folder that make packages SIGNING_KEY=FILE has written.",
    )


def _upload(client: ApiClient, version: str, path: Path, offset: int) -> None:
    with path.open("rb") as file:
        file.seek(offset)
        while data := file.read(agent_packages.MOST_PART_BYTES):
            client.put_package_part(version, path.name, offset, base64.b64encode(data).decode())
            offset += len(data)


@app.command()
def packages(api: Api = DEFAULT_API, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False) -> None:
    """Versions that are uploaded, the newest first."""
    with connect(api, tenant) as client:
        found = client.releases()
    _put_releases(found, as_json=as_json)


@app.command()
def remove(version: str, api: Api = DEFAULT_API, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False) -> None:
    """Remove a version's packages. Agents that run it stay as they are."""
    with connect(api, tenant) as client:
        gone = client.remove_release(version)
    typer.echo(document(gone) if as_json else f"Version {plain(gone.version)} is removed.")


def _put_releases(found: Sequence[ReleaseView], *, as_json: bool) -> None:
    if as_json:
        typer.echo(document(Releases(releases=list(found))))
        return
    grid = Grid("VERSION", "STATE", "FOR", "BYTES", "AGENTS", "ADDED", right=["BYTES", "AGENTS"], name="VERSION")
    for each in found:
        forms = ", ".join(f"{one.format} {one.machine}" for one in each.packages)
        grid.add_row(
            Text(plain(each.version), style="bold"),
            "whole" if each.complete else "half uploaded",
            Text(plain(forms)),
            count(each.size_bytes),
            count(each.agents),
            moment(each.created_at_us),
        )
    put(*([grid] if found else [Text("No version is uploaded. Run: menura upgrade add DIR")]))


@app.command()
def start(
    version: str,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", metavar="NAME=GLOB,...", help="Agents by globs of their names; groups in this order."),
    ] = None,
    wait: Annotated[
        str, typer.Option("--wait", help="A group must run it well so long: 10m, 2h; 0 for no wait.")
    ] = "10m",
    at_once: Annotated[int, typer.Option("--at-once", min=1, max=1_000, help="Orders at a time.")] = 10,
    most_failures: Annotated[int, typer.Option("--most-failures", min=0, help="With one more it halts.")] = 0,
    within: Annotated[str, typer.Option("--within", help="An agent may take so long for each step.")] = "1h",
    roll_back: Annotated[
        bool, typer.Option("--roll-back", help="When it halts, agents that run the version go back.")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Change nothing: show who would get it.")] = False,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Give agents a version: one as a canary and then the rest, or the groups that are named."""
    order = {
        "version": version,
        "groups": [read_group(text) for text in group or []],
        "wait_seconds": read_wait(wait),
        "at_once": at_once,
        "most_failures": most_failures,
        "within_seconds": seconds_of(within, MOST_SECONDS, "--within"),
        "roll_back": roll_back,
    }
    with connect(api, tenant) as client:
        if plan:
            _put_plan(client.plan_rollout(order), as_json=as_json)
            return
        begun = client.start_rollout(order)
    _put_rollout(begun, None, as_json=as_json)


def read_wait(text: str) -> int:
    """Seconds.

    >>> read_wait("0"), read_wait("0s"), read_wait("10m")
    (0, 0, 600)
    """
    return 0 if re.fullmatch("0[smhd]?", text) else seconds_of(text, MOST_SECONDS, "--wait")


def read_group(text: str) -> dict[str, object]:
    """
    >>> read_group("eu=eu-*,shop-1")
    {'name': 'eu', 'agents': ['eu-*', 'shop-1']}
    """
    name, sign, globs = text.partition("=")
    agents = [each for each in globs.split(",") if each]
    if not sign or not name or not agents:
        raise RequestInvalid(
            "reading --group", repr(text), data="Nothing was changed.", remedy="Give it as NAME=GLOB or NAME=GLOB,GLOB."
        )
    return {"name": name, "agents": agents}


@app.command()
def show(
    agents: Annotated[bool, typer.Option("--agents", help="All agents, not only those that are not done.")] = False,
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """The newest rollout: its groups, and each agent with the reason why it is where it is."""
    states = () if agents else tuple(state for state in AgentState if state is not AgentState.DONE)
    with connect(api, tenant) as client:
        found = client.rollout()
        listed = [] if found is None else client.rollout_agents(states)
    _put_rollout(found, listed, as_json=as_json)


@app.command()
def pause(api: Api = DEFAULT_API, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False) -> None:
    """Offer nothing more. What a host has in work ends as it ends."""
    _command("pause", api, tenant, as_json=as_json)


@app.command()
def resume(api: Api = DEFAULT_API, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False) -> None:
    """Go on after a pause or a halt; agents that have failed are tried again."""
    _command("resume", api, tenant, as_json=as_json)


@app.command()
def cancel(api: Api = DEFAULT_API, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False) -> None:
    """End the rollout. Each agent stays at what it runs."""
    _command("cancel", api, tenant, as_json=as_json)


@app.command()
def back(api: Api = DEFAULT_API, tenant: Tenant = DEFAULT_TENANT, as_json: AsJson = False) -> None:
    """Give all agents that the newest rollout has changed the version from before."""
    _command("back", api, tenant, as_json=as_json)


@app.command()
def skip(
    agents: Annotated[str, typer.Argument(metavar="GLOB", help="Of agents' names.")],
    api: Api = DEFAULT_API,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: AsJson = False,
) -> None:
    """Wait for none of these agents, and count no failure of theirs. They have their order when they can."""
    _command("skip", api, tenant, as_json=as_json, body={"agents": agents})


def _command(word: str, api: str, tenant: str, *, as_json: bool, body: dict[str, object] | None = None) -> None:
    with connect(api, tenant) as client:
        changed = client.command_rollout(word, body or {})
    _put_rollout(changed, None, as_json=as_json)


def _put_plan(found: RolloutPlan, *, as_json: bool) -> None:
    if as_json:
        typer.echo(document(found))
        return
    grid = Grid("AGENT", "GROUP", "RUNS", "ORDER", "WHAT TO DO", folds=["WHAT TO DO"], name="AGENT")
    for each in found.agents:
        grid.add_row(
            Text(plain(each.agent), style="bold"),
            plain(each.group),
            Text(plain(each.runs or UNKNOWN)),
            plain(found.version) if each.reason is None else each.reason,
            each.remedy,
        )
    others = "".join(f", {count(agents)} {why}" for why, agents in sorted(found.reasons.items()))
    listed = "" if sum(found.reasons.values()) + found.able == len(found.agents) else "; the first are listed"
    put(grid, Text(f"{count(found.able)} can have {plain(found.version)} now{others}{listed}. Nothing was changed."))
    if found.without_group:
        put(Text(f"{count(found.without_group)} other agents are in no group and stay as they are."))


def _put_rollout(found: RolloutView | None, agents: Sequence[RolloutAgentView] | None, *, as_json: bool) -> None:
    if as_json:
        plain_answer = RolloutShown(rollout=found)
        typer.echo(document(plain_answer if agents is None else RolloutReport(rollout=found, agents=list(agents))))
        return
    if found is None:
        put(Text("There was no rollout. Run: menura upgrade start VERSION"))
        return
    put(Text(_told(found)))
    grid = Grid("GROUP", "TURN", *(state.upper() for state in AgentState), name="GROUP")
    for number, each in enumerate(found.groups):
        turn = "now" if number == found.group else "over" if number < found.group else "later"
        counts = (count(each.agents.get(state, 0)) for state in AgentState)
        grid.add_row(Text(plain(each.name), style="bold"), turn if found.ended_at_us is None else "over", *counts)
    put(grid)
    if agents:
        put(_agents(agents))


def _told(found: RolloutView) -> str:
    what = f"version {found.version}" if found.version else f"the versions from before rollout {found.back_of}"
    text = f"Rollout {found.rollout}: {plain(what)}, {found.state}, begun {moment(found.created_at_us)}."
    if found.problem is not None:
        text += (
            f" {plain(found.problem.message)} Look at the agents below; then: menura upgrade resume, back or cancel."
        )
    if found.waited_seconds is not None and found.ended_at_us is None:
        waited = duration(found.waited_seconds * 1_000_000)
        text += f" Its group has run well for {waited} of {duration(found.wait_seconds * 1_000_000)}."
    return text


def _agents(agents: Sequence[RolloutAgentView]) -> Grid:
    grid = Grid(
        "AGENT", "GROUP", "RUNS", "REASON", "DETAIL", "WHAT TO DO", folds=["DETAIL", "WHAT TO DO"], name="AGENT"
    )
    for each in agents:
        grid.add_row(
            Text(plain(each.agent), style="bold"),
            plain(each.group),
            Text(plain(each.runs or UNKNOWN)),
            Text(each.reason + (" (skipped)" if each.skipped else "")),
            Text(plain(detail(each))),
            each.remedy,
        )
    return grid


def detail(each: RolloutAgentView) -> str:
    if each.reason is Reason.DOWNLOADING and each.size_bytes:
        return f"{count(each.downloaded_bytes or 0)} of {count(each.size_bytes)} bytes"
    if each.reason is Reason.NOT_CONNECTED:
        return f"since {moment(each.seen_at_us)}" if each.seen_at_us else "never was"
    return f"{each.code}: {each.message}" if each.code else each.message
