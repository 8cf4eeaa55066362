"""The entry point of the agent's part: comes in what the command line names, go out findings."""

import os
from pathlib import Path

from menura.doctor import Asked, Finding, Result

from agent.config import load, read_source
from agent.doctor.host import checks
from agent.doctor.host_gathering import gather
from agent.doctor.source_doctor import doctors
from agent.errors import ConfigError
from agent.host_access import RemoteAccess
from agent.remote_document import entry_of
from agent.remote_store import FILE_NAME, RemoteStore
from agent.runtime.state_folder import state_folder_of
from agent.settings import AgentConfig, SourceConfig


def examine(asked: Asked) -> list[Finding]:
    """Raises a `ConfigError`, or a `GatewayError` of the agent's identity, where the file itself is wrong."""
    if not asked.config:
        return []
    path = Path(asked.config)
    config = load(path)
    found = checks.of("agent's host", gather(path, config, asked.api))
    found = [each for each in found if asked.api or each.check != "gateway-clock"]
    for source in config.sources:
        found += _of_source(config, source)
    return found + (_of_remote(config, config.remote) if config.remote is not None else [])


def _of_source(config: AgentConfig, source: SourceConfig) -> list[Finding]:
    doctor = doctors().get(source.kind)
    if doctor is None:
        found = f"no installed package brings checks of the kind {source.kind}"
        return [_unexamined(f"source {source.name}", found, "Upgrade the package of that kind to one with checks")]
    return doctor.examine(config.tenant, config.agent, source)


def _of_remote(config: AgentConfig, access: RemoteAccess) -> list[Finding]:
    """Of the sources that the control plane has configured, as the agent has last stored them."""
    folder = state_folder_of(config.state_folder, config.agent, os.environ)
    try:
        stored = RemoteStore(folder).load()
    except (OSError, ValueError) as broken:
        file = folder / FILE_NAME
        if isinstance(broken, OSError):
            found, fix = broken.strerror or type(broken).__name__, "Run it again as the user of the agent"
        else:
            found, fix = "the agent has not written it so", "Start the agent, which gets them from the gateway again"
        return [_unexamined("sources of the control plane", f"{file}: {found}", fix)]
    local = {source.name for source in config.sources}
    findings: list[Finding] = []
    for name, one in stored.items():
        if name in local:  # which wins
            continue
        try:
            source = read_source(name, entry_of(name, one.document, one.sha256, access))
        except ConfigError as refused:
            findings.append(_unexamined(f"source {name}", refused.found, refused.remedy))
        else:
            findings += _of_source(config, source)
    return findings


def _unexamined(part: str, found: str, fix: str) -> Finding:
    why = "What is wrong at servers that were not asked stays unknown."
    return Finding(part, "examined", Result.UNKNOWN, found, why, fix)
