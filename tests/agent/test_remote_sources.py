"""What a configuration of the control plane may name on the agent's host, and what of it is refused."""

import json
import os
from pathlib import Path

import pytest
import yaml
from menura.errors import MenuraError
from menura.source_configuration import MAX_DOCUMENT_BYTES, sha256_of
from menura.v1.config_pb2 import DesiredSources, SourceConfiguration

from agent import remote_sources
from agent.config import load, read_source
from agent.errors import ConfigError
from agent.host_access import RemoteAccess
from agent.remote_document import entry_of
from agent.remote_sources import RemoteSources
from agent.remote_store import FILE_NAME, RemoteStore, Stored
from agent.running_source import RunningSource, stop_all
from agent.runtime.commands import Bucket
from agent.runtime.session import GatewayChannel
from agent.runtime.state import SourceState, SourceStates
from agent.settings import AgentConfig, GatewayConfig, SourceConfig
from agent.source_kind import Context
from agent.sources.mysql.config import MysqlConfig
from tests.agent.memory import installed
from tests.memory_source.database import MemoryDatabase
from tests.stack import wait_for


@pytest.fixture
def access(tmp_path: Path) -> RemoteAccess:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "shop").write_text("s3cret\n")
    (tmp_path / "outside").write_text("not yours")
    (secrets / "link").symlink_to(tmp_path / "outside")
    (secrets / "good-link").symlink_to(secrets / "shop")
    (secrets / "loop").symlink_to(secrets / "loop")
    os.mkfifo(secrets / "pipe")
    (secrets / "latin").write_bytes(b"\xe4\xff")
    return RemoteAccess(secrets, frozenset({"MENURA_SHOP"}), ("db1.example", "*.internal", "10.1.0.0/16"))


def read(access: RemoteAccess, document: object) -> SourceConfig:
    text = document if isinstance(document, str) else json.dumps(document)
    return read_source("shop", entry_of("shop", text, sha256_of(text), access))


def client(**changes: object) -> dict[str, object]:
    entries = {"host": "127.0.0.1", "user": "menura", "password": {"file": "shop"}} | changes
    return {"kind": "mysql", "client": {key: value for key, value in entries.items() if value is not None}}


def test_configuration_when_it_names_what_is_allowed_then_it_is_read_as_the_agents_own(
    access: RemoteAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MENURA_SHOP", "of the environment")
    for password, expected in (
        ({"file": "shop"}, "s3cret"),
        ({"file": "good-link"}, "s3cret"),
        ({"file": str(access.secrets / "shop")}, "s3cret"),
        ({"env": "MENURA_SHOP"}, "of the environment"),
    ):
        found = read(access, client(password=password))
        assert isinstance(found, MysqlConfig)
        assert found.client.password.reveal() == expected
    for host in ("localhost", "127.0.0.9", "::1", "DB1.example", "a.b.internal", "10.1.255.1"):
        assert read(access, client(host=host)).address
    tls = {"mode": "verify_ca", "ca": "shop"}
    found = read(access, client(tls=tls))
    assert isinstance(found, MysqlConfig)
    assert found.client.tls.ca == str((access.secrets / "shop").resolve())


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"password": {"file": "/etc/shadow"}}, "outside of"),
        ({"password": {"file": "../outside"}}, "outside of"),
        ({"password": {"file": "link"}}, "outside of"),
        ({"password": None, "password_file": "link"}, "outside of"),
        ({"tls": {"mode": "verify_ca", "ca": "../outside"}}, "outside of"),
        ({"password": {"file": "loop"}}, "client.password.file names"),
        ({"password": {"file": "a\0b"}}, "it is no path"),
        ({"password": {"file": "."}}, "client.password.file names"),
        ({"password": {"file": "pipe"}}, "names what is no file"),
        ({"password": {"file": "missing"}}, "No such file"),
        ({"password": {"file": "latin"}}, "not UTF-8"),
        ({"password": {"env": "HOME"}}, "does not allow"),
        ({"password": None, "password_env": "HOME"}, "does not allow"),
        ({"password": {"env": "MENURA_SHOP"}}, "is not set"),
        ({"password": "literal"}, "only its place"),
        ({"password": ["literal"]}, "only its place"),
        ({"password": {}}, "does not name one place"),
        ({"password": {"file": "shop", "env": "MENURA_SHOP"}}, "does not name one place"),
        ({"host": "evil.example"}, "does not allow"),
        ({"host": "internal"}, "does not allow"),
        ({"host": "evilinternal"}, "does not allow"),
        ({"host": "10.2.0.1"}, "does not allow"),
        ({"host": "2130706433"}, "does not allow"),
        ({"host": "0.0.0.0"}, "does not allow"),
        ({"host": "127.0.0.1.evil.example"}, "does not allow"),
        ({"host": 7}, "is not a text"),
        ({"unknown": 7}, "is not a known key"),
    ],
)
def test_configuration_when_it_names_more_than_is_allowed_then_it_is_refused_and_says_nothing_of_the_file(
    access: RemoteAccess, changes: dict[str, object], found: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read(access, client(**changes))
    assert found in str(refused.value) and "literal" not in str(refused.value)
    assert "not yours" not in str(refused.value)
    assert str(refused.value).startswith(f"{refused.value.code}: reading the configuration of source shop")


def test_configuration_when_it_asks_for_a_part_of_this_hosts_disk_then_it_is_refused(access: RemoteAccess) -> None:
    document = {**client(database="shop"), "kind": "postgresql"}
    assert read(access, document)
    with pytest.raises(ConfigError, match="this host's disk"):
        read(access, {**document, "max_streamed_bytes": 1})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"kind": NaN}',
        "[" * 10_000,
        '{"a":' * 500 + "1" + "}" * 500,
        '"' + "x" * MAX_DOCUMENT_BYTES + '"',
    ],
    ids=["empty", "list", "cut off", "constant", "deep list", "deep", "large"],
)
def test_configuration_when_it_is_no_document_then_it_is_refused(access: RemoteAccess, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(access, text)
    assert refused.value.code == "CONFIG_MALFORMED"


def test_configuration_when_its_digest_is_of_another_text_then_it_is_refused(access: RemoteAccess) -> None:
    with pytest.raises(ConfigError, match="digest"):
        entry_of("shop", "{}", sha256_of("{ }"), access)


def test_store_when_it_is_broken_or_of_somebody_else_then_it_is_empty_and_written_anew(tmp_path: Path) -> None:
    store, path = RemoteStore(tmp_path / "state"), tmp_path / "state" / "remote-sources.json"
    assert store.read() == {}
    one = Stored(3, sha256_of("{}"), "{}")
    store.write({"shop": one})
    assert store.read() == {"shop": one}
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    for broken in (
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"format": 2, "sources": {"shop": {}}}',
        b'{"format": 1, "sources": 7}',
    ):
        path.write_bytes(broken)
        assert store.read() == {}
    path.write_text(json.dumps({"format": 1, "sources": {"shop": {"generation": 1, "sha256": "x", "document": "{}"}}}))
    assert store.read() == {}
    store.write({"shop": one})
    assert store.read() == {"shop": one}


@pytest.mark.parametrize("secrets", ["{state}", "{state}/..", "/", "{file}/..", "secrets"])
def test_config_when_the_folder_of_secrets_holds_what_is_the_agents_own_then_it_is_refused(
    tmp_path: Path, secrets: str
) -> None:
    path, state = tmp_path / "conf" / "agent.yaml", tmp_path / "var" / "state"
    path.parent.mkdir()
    config = {
        "tenant": "acme",
        "agent": "db-1",
        "gateway": {"address": "127.0.0.1:7070"},
        "state_folder": str(state),
        "remote": {"secrets": secrets.format(state=state, file=path)},
    }
    path.write_text(yaml.safe_dump(config))
    with pytest.raises(MenuraError) as refused:
        load(path)
    assert refused.value.code == "CONFIG_INVALID" and "line " in str(refused.value)
    path.write_text(yaml.safe_dump(config | {"remote": None}))
    loaded = load(path)
    assert loaded.remote == RemoteAccess(state / "secrets") and loaded.sources == ()
    path.write_text(yaml.safe_dump({key: value for key, value in config.items() if key != "remote"}))
    with pytest.raises(ConfigError, match="lacks sources"):
        load(path)


def test_sources_when_the_state_folder_refuses_them_then_they_are_tried_again_and_run(
    access: RemoteAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_sources, "RETRY_SECONDS", 0.05)
    folder = tmp_path / "state"
    states = SourceStates()
    channel = GatewayChannel(AgentConfig("acme", "db-1", GatewayConfig("127.0.0.1:1", None), ()))

    def make(source: SourceConfig) -> RunningSource:
        return RunningSource(Context("acme", "db-1", source, SourceState(source), folder))

    def desired(generation: int) -> DesiredSources:
        text = json.dumps({"kind": "memory", "database": "shop"})
        one = SourceConfiguration(source="shop", generation=generation, sha256=sha256_of(text), document=text)
        return DesiredSources(digest=f"of {generation}", sources=[one])

    def told() -> tuple[int, str] | None:
        effective = configured.effective()
        return None if effective is None else (effective.sources[0].generation, effective.sources[0].error.code)

    configured = RemoteSources(access, frozenset(), folder, states, make)
    with installed(tmp_path, monkeypatch):
        MemoryDatabase("shop")
        configured.run(channel)
        configured.desire(desired(1))
        wait_for("the first one", lambda: told() == (1, ""))
        in_the_way = folder / f"{FILE_NAME}.new"
        in_the_way.mkdir()
        configured.desire(desired(2))
        wait_for("what is in the way", lambda: told() == (1, "STATE_FOLDER_UNUSABLE"))
        in_the_way.rmdir()
        wait_for("the second one", lambda: told() == (2, ""))
        stop_all([part for source in configured.stop() for part in source.parts()])
        channel.close()


def test_sources_when_a_gateway_flips_one_back_and_forth_then_few_begin_and_the_newest_wins(
    access: RemoteAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, made, flips = tmp_path / "state", [0], 11
    channel = GatewayChannel(AgentConfig("acme", "db-1", GatewayConfig("127.0.0.1:1", None), ()))

    def make(source: SourceConfig) -> RunningSource:
        made[0] += 1
        return RunningSource(Context("acme", "db-1", source, SourceState(source), folder))

    def desired(generation: int) -> DesiredSources:
        text = json.dumps({"kind": "memory", "database": "shop" if generation % 2 else "other"})
        one = SourceConfiguration(source="shop", generation=generation, sha256=sha256_of(text), document=text)
        return DesiredSources(digest=f"of {generation}", sources=[one])

    def running() -> int:
        effective = configured.effective()
        return 0 if effective is None else effective.sources[0].generation

    configured = RemoteSources(access, frozenset(), folder, SourceStates(), make)
    now = [0.0]
    configured._starts = Bucket(20.0, 2, clock=lambda: now[0])
    with installed(tmp_path, monkeypatch):
        MemoryDatabase("shop"), MemoryDatabase("other")
        configured.run(channel)
        for generation in range(1, flips + 1):
            configured.desire(desired(generation))
            if generation <= 2:
                wait_for("one that may begin", lambda: running() == generation)  # noqa: B023
        now[0] += 0.06
        wait_for("the newest", lambda: running() == flips)
        assert made[0] == 3
        stop_all([part for source in configured.stop() for part in source.parts()])
        channel.close()
