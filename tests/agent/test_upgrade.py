"""How an agent hands an order to its host's updater, and tells the gateway what became of it."""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any, cast

import pytest
from menura.v1 import config_pb2, stream_pb2

from agent.errors import GatewayRefusedForNow
from agent.runtime import upgrade as module
from agent.runtime import upgrade_files
from agent.runtime.session import StreamWriter
from agent.runtime.upgrade import MAX_PIECE_BYTES, Upgrade
from agent.runtime.upgrade_files import UpgradePlaces
from tests.stack import wait_for

State = config_pb2.EffectiveVersion
SECONDS = 60
NEW = bytes(range(256)) * 1500
OLD = b"former" * 100


class Stream:
    """The agent's end of Control_Config, and the gateway's, which answers as `answers` says."""

    def __init__(self) -> None:
        self.said: Queue[config_pb2.EffectiveVersion] = Queue()
        self.asked: Queue[config_pb2.PackageRequest] = Queue()

    def send(self, response: stream_pb2.StreamResponse) -> None:
        if response.WhichOneof("payload") == "package_request":
            self.asked.put(response.package_request)
        else:
            self.said.put(response.effective_version)

    def until(self, state: int, words: str = "") -> config_pb2.EffectiveVersion:
        while True:
            said = self.said.get(timeout=SECONDS)
            if said.state == state and words in said.error.found:
                return said


class Gateway:
    def __init__(self, upgrade: Upgrade) -> None:
        self.upgrade = upgrade
        self.stream = Stream()
        self.offsets: list[int] = []
        upgrade.opened(cast(StreamWriter, self.stream))

    def again(self) -> None:
        self.upgrade.closed()
        self.stream = Stream()
        self.upgrade.opened(cast(StreamWriter, self.stream))

    def desire(self, **changes: Any) -> config_pb2.DesiredVersion:
        desired = config_pb2.DesiredVersion(generation=7, package=package("0.2.0", NEW), way_back=package("0.1.0", OLD))
        for name, value in changes.items():
            setattr(desired.package, name, value)
        self.upgrade.desire(desired)
        return desired

    def piece(self, content: bytes | None = None) -> int:
        """Answer one request, by what was asked for or by this; its offset."""
        asked = self.stream.asked.get(timeout=SECONDS)
        whole = next(each for each in (NEW, OLD) if hashlib.sha256(each).hexdigest() == asked.sha256)
        data = whole[asked.offset : asked.offset + MAX_PIECE_BYTES] if content is None else content
        self.offsets.append(asked.offset)
        self.upgrade.took(config_pb2.PackagePiece(sha256=asked.sha256, offset=asked.offset, data=data))
        return asked.offset


def package(version: str, content: bytes) -> config_pb2.AgentPackage:
    digest = hashlib.sha256(content).hexdigest()
    return config_pb2.AgentPackage(
        version=version, name="../../x", sha256=digest, size_bytes=len(content), sums=b"sums", signature=b"signed"
    )


@pytest.fixture
def places(tmp_path: Path) -> UpgradePlaces:
    key = tmp_path / "packages.pem"
    key.touch()
    return UpgradePlaces(tmp_path / "state/upgrade", tmp_path / "result.json", key, tmp_path)


def ordered(gateway: Gateway) -> config_pb2.DesiredVersion:
    desired = gateway.desire()
    for _ in range(PIECES):
        gateway.piece()
    gateway.stream.until(State.INSTALLING)
    return desired


@contextmanager
def running(
    places: UpgradePlaces, version: str = "0.1.0", form: str = "deb", sources: Mapping[str, str] | None = None
) -> Iterator[Gateway]:
    upgrade = Upgrade(places, version, form=form, sources=lambda: sources or {})
    try:
        yield Gateway(upgrade)
    finally:
        upgrade.closed()
        upgrade.stop()


def result(places: UpgradePlaces, **changes: object) -> None:
    said = {"format": 1, "generation": 7, "state": "DONE", "version": "0.2.0", "found": "", "remedy": ""}
    draft = places.result.with_name("draft")
    draft.write_text(json.dumps(said | changes))
    draft.rename(places.result)


PIECES = -(-len(NEW) // MAX_PIECE_BYTES) + 1


def test_upgrade_when_it_is_ordered_then_both_packages_are_whole_before_the_order_and_its_result_is_told(
    places: UpgradePlaces,
) -> None:
    with running(places) as gateway:
        first = gateway.stream.until(State.RUNNING)
        assert (first.generation, first.version, first.format, first.machine) == (0, "0.1.0", "deb", "x86_64")
        gateway.desire()
        for _ in range(PIECES):
            assert not (places.folder / "order.json").exists()
            gateway.piece()
        assert gateway.stream.until(State.INSTALLING).generation == 7
        order = json.loads((places.folder / "order.json").read_text())
        assert order["generation"] == 7
        for name, content in (("package", NEW), ("way_back", OLD)):
            assert (places.folder / order[name]["sha256"]).read_bytes() == content
            assert base64.b64decode(order[name]["sums"]) == b"sums"
        assert gateway.stream.asked.empty()
    with running(places, "0.2.0") as gateway:
        assert gateway.stream.until(State.INSTALLING).version == "0.2.0"
        result(places)
        assert gateway.stream.until(State.RUNNING).generation == 7


def test_download_when_the_stream_breaks_or_the_agent_is_killed_then_goes_on_where_it_was(
    places: UpgradePlaces,
) -> None:
    with running(places) as gateway:
        gateway.desire()
        gateway.piece()
        gateway.stream.asked.get(timeout=SECONDS)
        gateway.again()
        gateway.desire()
        assert gateway.piece() == MAX_PIECE_BYTES
        gateway.stream.asked.get(timeout=SECONDS)
    with running(places) as gateway:
        gateway.desire()
        assert gateway.piece() == 2 * MAX_PIECE_BYTES
        assert gateway.piece() == 0
        gateway.stream.until(State.INSTALLING)


def test_upgrade_when_the_host_allows_none_or_the_agent_is_no_package_then_nothing_is_asked_for(
    places: UpgradePlaces,
) -> None:
    places.key.unlink()
    with running(places) as gateway:
        gateway.desire()
        said = gateway.stream.until(State.REFUSED, "the host allows no upgrades")
        assert (said.generation, said.error.code) == (7, "UPGRADE_REFUSED")
        assert gateway.stream.asked.empty()
    places.key.touch()
    with running(places, form="") as gateway:
        gateway.desire()
        gateway.stream.until(State.REFUSED, "not installed as a package")
    assert not places.folder.exists()


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"version": "0.2.0; rm"}, "no"),
        ({"sha256": "../../../etc/passwd"}, "a digest that is none"),
        ({"size_bytes": upgrade_files.MAX_PACKAGE_BYTES + 1}, "at most"),
        ({"size_bytes": 0}, "at most"),
        ({"sums": b"x" * (upgrade_files.MAX_SUMS_BYTES + 1)}, "longer"),
        ({"signature": b"x" * (upgrade_files.MAX_SIGNATURE_BYTES + 1)}, "longer"),
    ],
)
def test_order_when_it_is_none_then_is_refused_and_nothing_is_written(
    changes: dict[str, Any], found: str, places: UpgradePlaces
) -> None:
    with running(places) as gateway:
        gateway.desire(**changes)
        gateway.stream.until(State.REFUSED, found)
    assert not places.folder.exists()


@pytest.mark.parametrize("content", [b"", b"x" * (MAX_PIECE_BYTES + 1)], ids=["empty", "large"])
def test_piece_when_it_is_none_then_is_not_written_and_the_reason_is_told(
    content: bytes, places: UpgradePlaces
) -> None:
    with running(places) as gateway:
        gateway.desire()
        gateway.piece(content)
        gateway.stream.until(State.DOWNLOADING, f"a piece of {len(content)} bytes at 0 of {len(NEW)}")
    assert not list(places.folder.iterdir())


def test_piece_when_nobody_has_asked_for_it_then_is_not_taken(places: UpgradePlaces) -> None:
    with running(places) as gateway:
        desired = gateway.desire()
        asked = gateway.stream.asked.get(timeout=SECONDS)
        for sha256, offset in ((asked.sha256, 1), (desired.way_back.sha256, 0)):
            gateway.upgrade.took(config_pb2.PackagePiece(sha256=sha256, offset=offset, data=b"x"))
        gateway.upgrade.took(config_pb2.PackagePiece(sha256=asked.sha256, offset=0, data=NEW[:5]))
        assert gateway.piece() == 5


def test_package_when_its_bytes_are_others_then_is_fetched_anew(
    places: UpgradePlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
    with running(places) as gateway:
        gateway.desire()
        for _ in range(PIECES - 1):
            asked = gateway.stream.asked.get(timeout=SECONDS)
            data = b"x" * min(MAX_PIECE_BYTES, len(NEW) - asked.offset)
            gateway.upgrade.took(config_pb2.PackagePiece(sha256=asked.sha256, offset=asked.offset, data=data))
        gateway.stream.until(State.DOWNLOADING, "are not those that its digest names")
        for _ in range(PIECES):
            gateway.piece()
        gateway.stream.until(State.INSTALLING)


def test_package_when_the_gateway_gives_none_then_it_is_asked_again_a_bounded_number_of_times(
    places: UpgradePlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(module, "MOST_DELAYS", 2)
    with running(places) as gateway:
        gateway.desire()
        for _ in range(3):
            gateway.stream.asked.get(timeout=SECONDS)
            gateway.upgrade.refused(GatewayRefusedForNow("asking", "PACKAGE_NOT_DESIRED", remedy="wait"))
        said = gateway.stream.until(State.REFUSED, "PACKAGE_NOT_DESIRED, 3 times")
        assert said.error.remedy == "wait"


def test_disk_when_it_has_no_room_then_the_order_is_refused_before_a_byte_is_asked_for(
    places: UpgradePlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade_files, "KEPT_FREE_BYTES", 1 << 60)
    with running(places) as gateway:
        gateway.desire()
        gateway.stream.until(State.REFUSED, "there is no room")
        assert gateway.stream.asked.empty()


def test_folder_when_another_order_comes_then_what_it_does_not_name_goes(places: UpgradePlaces) -> None:
    places.folder.mkdir(parents=True)
    for name in ("0" * 64, "1" * 64 + ".part", "order.json", "anything"):
        (places.folder / name).touch()
    with running(places) as gateway:
        gateway.desire()
        gateway.piece()
        gateway.stream.asked.get(timeout=SECONDS)
        assert [path.name for path in places.folder.iterdir()] == [hashlib.sha256(NEW).hexdigest() + ".part"]


def test_order_when_the_host_has_rolled_back_or_refused_then_the_reason_is_told_and_it_is_not_ordered_again(
    places: UpgradePlaces,
) -> None:
    with running(places) as gateway:
        desired = ordered(gateway)
        result(places, state="ROLLED_BACK", found="no gateway was reached", remedy="look there")
        said = gateway.stream.until(State.ROLLED_BACK, "no gateway was reached")
        assert (said.error.code, said.error.remedy) == ("UPGRADE_ROLLED_BACK", "look there")
        result(places, state="REFUSED", found="not signed", remedy="sign it")
        gateway.again()
        gateway.upgrade.desire(desired)
        assert gateway.stream.until(State.REFUSED, "not signed").generation == 7
        assert gateway.stream.asked.empty()


def test_result_when_root_has_written_something_else_then_it_is_none(places: UpgradePlaces) -> None:
    for content in ("", "[]", "{", '{"format": 2}', '{"format": 1, "generation": "7"}', "[" * 100_000):
        places.result.write_text(content)
        assert places.last_result() is None


def test_order_when_the_updater_does_not_answer_then_is_written_again_and_the_gateway_hears_of_it(
    places: UpgradePlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REMIND_SECONDS", 0.0)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    with running(places) as gateway:
        ordered(gateway)
        first = (places.folder / "order.json").stat().st_ino
        wait_for(
            "the order to be written again", lambda: (places.folder / "order.json").stat().st_ino != first, SECONDS
        )
        monkeypatch.setattr(module, "STUCK_SECONDS", 0.0)
        gateway.stream.until(State.INSTALLING, "the host's updater has not answered")


def test_order_when_it_is_taken_back_then_is_gone_for_good_and_that_is_answered(places: UpgradePlaces) -> None:
    nothing = config_pb2.DesiredVersion(generation=8)
    with running(places) as gateway:
        ordered(gateway)
        gateway.upgrade.desire(nothing)
        said = gateway.stream.until(State.RUNNING)
        assert (said.generation, said.version) == (8, "0.1.0")
        assert list(places.folder.iterdir()) == []
    with running(places) as gateway:
        assert gateway.stream.until(State.RUNNING).generation == 0
        gateway.upgrade.desire(nothing)
        assert gateway.stream.until(State.RUNNING).generation == 8


def test_order_when_it_is_taken_back_while_the_host_is_at_work_then_ends_as_it_ends(
    places: UpgradePlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    unfinished = places.result.with_name("unfinished")
    with running(places) as gateway:
        ordered(gateway)
        unfinished.mkdir()
        gateway.upgrade.desire(config_pb2.DesiredVersion(generation=8))
        while gateway.stream.until(State.INSTALLING).generation != 8:
            pass
        assert not (places.folder / "order.json").exists()
    with running(places, "0.2.0") as gateway:
        gateway.upgrade.desire(config_pb2.DesiredVersion(generation=8))
        while gateway.stream.until(State.INSTALLING).generation != 8:
            pass
        result(places)
        unfinished.rmdir()
        said = gateway.stream.until(State.RUNNING)
        assert (said.generation, said.version) == (8, "0.2.0")


def test_order_when_the_gateway_of_this_stream_does_not_desire_it_then_is_not_written_again(
    places: UpgradePlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(module, "STUCK_SECONDS", 1e9)
    with running(places) as gateway:
        ordered(gateway)
    now, looks = [0.0], [0]

    def clock() -> float:
        looks[0] += 1
        now[0] += module.REMIND_SECONDS
        return now[0]

    monkeypatch.setenv("INVOCATION_ID", "of the next process")
    (places.folder / "order.json").write_bytes((places.folder / "order.json").read_bytes())
    first = (places.folder / "order.json").stat().st_ino
    upgrade = Upgrade(places, "0.1.0", clock, "deb")
    try:
        gateway = Gateway(upgrade)
        gateway.stream.until(State.INSTALLING)
        seen = looks[0]
        wait_for("looks at the order", lambda: looks[0] > seen + 50, SECONDS)
        assert (places.folder / "order.json").stat().st_ino == first
        gateway.desire()
        wait_for("the order of this process", lambda: "of the next process" in _text(places), SECONDS)
    finally:
        upgrade.closed()
        upgrade.stop()


def _text(places: UpgradePlaces) -> str:
    return (places.folder / "order.json").read_text()


def test_order_when_all_sources_are_in_error_then_is_refused_before_a_byte_is_asked_for(places: UpgradePlaces) -> None:
    away = {"shop": "SOURCE_UNREACHABLE", "stock": "SOURCE_UNREACHABLE"}
    with running(places, sources=away) as gateway:
        gateway.desire()
        said = gateway.stream.until(State.REFUSED, "all sources are in error")
        assert "shop: SOURCE_UNREACHABLE" in said.error.found
        assert said.error.remedy == "Mend the sources, then resume the rollout"
        assert gateway.stream.asked.empty()
    with running(places, sources=away | {"stock": ""}) as gateway:
        ordered(gateway)


def test_sources_when_they_change_then_the_updater_is_told_by_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INVOCATION_ID", "this one")
    told, file = upgrade_files.ToldSources(tmp_path), tmp_path / "upgrade-sources.json"
    told.tell({"shop": ""})
    assert json.loads(file.read_text()) == {"format": 1, "invocation": "this one", "sources": {"shop": ""}}
    file.unlink()
    told.tell({"shop": ""})
    assert not file.exists()
    told.tell({"shop": "LOG_UNREADABLE"})
    assert json.loads(file.read_text())["sources"] == {"shop": "LOG_UNREADABLE"}
