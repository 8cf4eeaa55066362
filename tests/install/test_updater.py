"""The updater of a host over hostile orders, and killed at each step. systemd and package managers: test_upgrades."""

import base64
import gzip
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.servers import ROOT

sys.path.insert(0, str(ROOT / "deployment/agent_package/root/usr/lib/menura-agent"))

import orders
import this_host
import upgrade
from orders import Order, Package
from this_host import InstallFailed, Places, Service

SETTINGS = upgrade.Settings(wait_seconds=30)


class Killed(BaseException):
    """The process is gone at once."""


@dataclass
class Release:
    """Packages of one publisher, as the agent has them."""

    key: Path
    packages: dict[str, bytes] = field(default_factory=dict)

    def add(self, version: str, inside: str | None = None) -> str:
        """Its digest."""
        packed = io.BytesIO()
        with gzip.GzipFile("", "wb", 6, packed, 0) as compressed, tarfile.open(fileobj=compressed, mode="w") as tar:
            content = f"#!/bin/sh\nexit 0 # {version}\n".encode()
            member = tarfile.TarInfo(f"menura-agent-{inside or version}/install")
            member.size, member.mode = len(content), 0o755
            tar.addfile(member, io.BytesIO(content))
        self.packages[version] = packed.getvalue()
        return hashlib.sha256(packed.getvalue()).hexdigest()

    def sums(self, machine: str = os.uname().machine) -> bytes:
        names = {version: f"menura-agent-{version}-linux-{machine}.tar.gz" for version in self.packages}
        digests = {version: hashlib.sha256(content).hexdigest() for version, content in self.packages.items()}
        return "".join(f"{digests[version]}  {name}\n" for version, name in names.items()).encode()

    def sign(self, content: bytes) -> bytes:
        command = ["openssl", "dgst", "-sha256", "-sign", str(self.key)]
        return subprocess.run(command, input=content, capture_output=True, check=True).stdout

    def said(self, version: str) -> dict[str, Any]:
        content, sums = self.packages[version], self.sums()
        signed = {"sums": base64.b64encode(sums).decode(), "signature": base64.b64encode(self.sign(sums)).decode()}
        return {"version": version, "sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)} | signed


@dataclass
class HostDouble:
    """Of versions that are installed and of what systemd would say; `bad` ones reach no gateway."""

    version: str = "0.2.0"
    active: str = "active"
    bad: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()
    starts: int = 1
    #: by an installation that fails
    is_untouched: bool = False
    writes: int = 0
    #: what each version says of its sources
    sources: dict[str, dict[str, str]] = field(default_factory=dict)
    #: the agent's state folder
    state: Path = Path()
    installed_ones: list[str] = field(default_factory=list)

    def installed(self) -> tuple[str, str]:
        return "tar", self.version

    def install(self, kind: str, path: Path) -> None:
        with tarfile.open(path, "r:gz") as tar:
            version = tar.getnames()[0].partition("/")[0].removeprefix("menura-agent-")
        self.writes += 1
        if version in self.refuses:
            raise InstallFailed("its installation ended with 1: no")
        self.version = version
        self.starts += 1
        self.installed_ones.append(version)

    def files(self) -> str:
        return self.version if self.is_untouched else f"{self.version} after {self.writes} writes"

    def start(self) -> None:
        pass

    def service(self) -> Service:
        gateway = "not connected" if self.version in self.bad else "connected"
        status = f"version {self.version}; gateway {gateway}; 1 sources"
        if self.sources.get(self.version) != {}:
            said = {"format": 1, "invocation": f"start {self.starts}"}
            said |= {"sources": self.sources.get(self.version, {"shop": ""})}
            (self.state / "upgrade-sources.json").write_text(json.dumps(said))
        return Service(self.active, f"start {self.starts}", status, "0", "0")


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_key(tmp_path_factory.mktemp("key"))


def made_key(folder: Path) -> Path:
    made = folder / "packages.key"
    command = ["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    public = ["openssl", "pkey", "-in", str(made), "-pubout", "-out", str(made.with_name("public.pem"))]
    subprocess.run(public, check=True, capture_output=True)
    return made


@pytest.fixture
def release(key: Path) -> Release:
    made = Release(key)
    for version in ("0.1.0", "0.2.0", "0.3.0"):
        made.add(version)
    return made


@pytest.fixture
def places(tmp_path: Path, key: Path) -> Places:
    found = Places(tmp_path / "root")
    for folder in (found.agent_state / "upgrade", found.own, found.key.parent):
        folder.mkdir(parents=True)
    shutil.copy(key.with_name("public.pem"), found.key)
    found.key.chmod(0o644)
    return found


@pytest.fixture(autouse=True)
def _roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrade, "INSTALLED_BYTES", 1 << 20)


def order(
    places: Places, release: Release, version: str = "0.3.0", back: str = "0.2.0", /, starts: int = 1, **changes: Any
) -> dict[str, Any]:
    """As the agent writes it that was started so often; `changes` of the package alone."""
    folder = places.agent_state / "upgrade"
    said = {"format": 1, "generation": 7, "package": release.said(version), "way_back": release.said(back)}
    said |= {"invocation": f"start {starts}", "at_boot_seconds": boot_seconds()}
    for name, found in (("package", version), ("way_back", back)):
        (folder / said[name]["sha256"]).write_bytes(release.packages[found])
    said["package"] |= changes
    (folder / "order.json").write_text(json.dumps(said))
    return said


def boot_seconds() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def run(places: Places, host: HostDouble, settings: upgrade.Settings = SETTINGS) -> dict[str, Any]:
    """The result; empty: there is none."""
    host.state = places.agent_state
    upgrade.run(places, host, settings, lambda seconds: None)
    found = places.own / "result.json"
    return json.loads(found.read_text()) if found.exists() else {}


def test_order_when_all_is_well_then_is_installed_once_and_its_result_can_be_read_by_the_agent(
    places: Places, release: Release
) -> None:
    order(places, release)
    host = HostDouble()
    result = run(places, host)
    assert (result["state"], result["generation"], result["version"]) == ("DONE", 7, "0.3.0")
    assert stat.S_IMODE((places.own / "result.json").stat().st_mode) == 0o644
    assert run(places, host) == result
    assert host.installed_ones == ["0.3.0"]
    assert sorted(path.name for path in places.own.iterdir()) == ["record.json", "result.json"]


def test_order_when_the_new_version_reaches_no_gateway_then_the_former_one_is_installed_and_it_is_not_tried_again(
    places: Places, release: Release
) -> None:
    order(places, release)
    host = HostDouble(bad=("0.3.0",))
    result = run(places, host)
    assert result["state"] == "ROLLED_BACK"
    assert "no gateway was reached within 30 s" in result["found"]
    assert "no fault" not in result["found"]
    assert run(places, host) == result
    assert host.installed_ones == ["0.3.0", "0.2.0"]


def test_order_when_no_version_reaches_a_gateway_then_the_reason_says_that_it_may_be_no_fault_of_the_new_one(
    places: Places, release: Release
) -> None:
    order(places, release)
    result = run(places, HostDouble(bad=("0.2.0", "0.3.0")))
    assert result["state"] == "ROLLED_BACK"
    assert "0.2.0 is not well either, so it may be no fault of 0.3.0" in result["found"]


def test_order_when_its_installation_fails_then_the_former_one_is_installed(places: Places, release: Release) -> None:
    order(places, release)
    host = HostDouble(refuses=("0.3.0",))
    assert "its installation ended with 1: no" in run(places, host)["found"]
    assert host.installed_ones == ["0.2.0"]


def test_order_when_neither_can_be_installed_then_the_first_failure_is_told_and_a_later_run_goes_back(
    places: Places, release: Release
) -> None:
    order(places, release)
    host = HostDouble(refuses=("0.2.0", "0.3.0"))
    for times in (1, 2):
        with pytest.raises(InstallFailed):
            run(places, host)
        told = json.loads((places.own / "result.json").read_text())
        assert (told["state"], told["generation"]) == ("ROLLED_BACK", 7)
        assert f"the way back has failed {times} times" in told["found"]
    host.refuses = ("0.3.0",)
    assert "and then 0.2.0 again: its installation ended" in run(places, host)["found"]
    assert not places.unfinished.exists()


def test_order_when_an_earlier_one_can_not_be_ended_then_is_installed_in_its_place(
    places: Places, release: Release
) -> None:
    order(places, release)
    host = HostDouble(refuses=("0.2.0", "0.3.0"))
    with pytest.raises(InstallFailed):
        run(places, host)
    release.add("0.4.0")
    said = order(places, release, "0.4.0")
    (places.agent_state / "upgrade/order.json").write_text(json.dumps(said | {"generation": 8}))
    result = run(places, host)
    assert (result["state"], result["generation"], host.version) == ("DONE", 8, "0.4.0")
    assert run(places, host) == result
    assert not places.unfinished.exists()


def test_order_when_its_installation_fails_and_has_changed_nothing_then_is_refused_without_a_way_back(
    places: Places, release: Release
) -> None:
    order(places, release)
    host = HostDouble(refuses=("0.2.0", "0.3.0"), is_untouched=True)
    assert "0.2.0 was left as it was: its installation ended with 1" in refused(places, release, host)
    assert host.writes == 1


def test_way_back_when_it_has_failed_for_a_day_then_only_a_boot_or_an_order_tries_it_again(
    places: Places, release: Release, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    order(places, release)
    host = HostDouble(refuses=("0.2.0", "0.3.0"), state=places.agent_state)
    monkeypatch.setattr(upgrade, "Places", lambda: places)
    monkeypatch.setattr(upgrade, "Host", lambda places: host)
    monkeypatch.setattr(upgrade, "MOST_WAYS_BACK", 3)
    assert [upgrade.main() for _ in range(4)] == [1, 1, 0, 0]
    assert "tried again at the next boot" in capsys.readouterr().err
    host.refuses = ()
    assert upgrade.main() == 0
    assert not places.unfinished.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [("LEAST_VERSION", "0.3"), ("LEAST_VERSION", "1.2.3rc1"), ("WAIT_SECONDS", "ten"), ("WAIT_SECONDS", "9" * 5000)],
)
def test_setting_when_it_is_wrong_then_each_order_is_refused_by_its_name(
    name: str, value: str, places: Places, release: Release
) -> None:
    order(places, release)
    settings = upgrade.Settings.of({f"MENURA_UPGRADE_{name}": value})
    assert f"MENURA_UPGRADE_{name} is '{value[:80]}'" in refused(places, release, HostDouble(), settings)


def test_updater_when_it_is_killed_after_it_has_told_an_end_then_tells_the_same_whatever_is_so_now(
    places: Places, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(places: Places) -> None:
        if places.unfinished.exists():
            raise Killed

    order(places, release)
    host = HostDouble()
    with monkeypatch.context() as patched:
        patched.setattr(upgrade, "_forget", killed)
        with pytest.raises(Killed):
            run(places, host)
    host.bad = ("0.3.0",)
    host.starts += 1
    assert run(places, host)["state"] == "DONE"
    assert host.installed_ones == ["0.3.0"]


def unreadable(places: Places, release: Release) -> list[tuple[str, Callable[[], object]]]:
    folder = places.agent_state / "upgrade"
    file = folder / "order.json"
    secret = places.root / "secret"
    secret.write_text(json.dumps(order(places, release)))

    def linked_folder() -> None:
        folder.rename(folder.with_name("other"))
        folder.symlink_to("other")

    def written(text: str) -> Callable[[], object]:
        return lambda: file.write_text(text)

    def changed(**changes: Any) -> Callable[[], object]:
        return lambda: order(places, release, **changes)

    def changed_order(**changes: Any) -> Callable[[], object]:
        return lambda: file.write_text(json.dumps(order(places, release) | changes))

    return [
        ("link", lambda: (file.unlink(), file.symlink_to(secret))),
        ("pipe", lambda: (file.unlink(), os.mkfifo(file))),
        ("folder", lambda: (file.unlink(), file.mkdir())),
        ("large", written('{"format": 1, "a": "' + "x" * orders.MAX_ORDER_BYTES + '"}')),
        ("deep", written("[" * 100_000)),
        ("no document", written("\xff{")),
        ("list", written("[]")),
        ("other format", written(secret.read_text().replace('"format": 1', '"format": 2'))),
        ("generation", written(secret.read_text().replace('"generation": 7', '"generation": true'))),
        ("writer", changed_order(invocation=7)),
        ("time", changed_order(at_boot_seconds="now")),
        ("no writer", written(secret.read_text().replace('"invocation"', '"by"'))),
        ("version", changed(version="0.3.0/../../x")),
        ("letters", changed(version="0.3.0rc1")),
        ("digest", changed(sha256="../../../../etc/shadow")),
        ("size", changed(size_bytes=orders.MAX_PACKAGE_BYTES + 1)),
        ("sums", changed(sums=base64.b64encode(b"x" * (orders.MAX_SUMS_BYTES + 1)).decode())),
        ("signature", changed(signature=base64.b64encode(b"x" * (orders.MAX_SIGNATURE_BYTES + 1)).decode())),
        ("base64", changed(sums="*")),
        ("linked folder", linked_folder),
    ]


@pytest.mark.parametrize("at", range(20))
def test_order_when_it_is_no_order_then_nothing_is_done(
    at: int, places: Places, release: Release, capfd: pytest.CaptureFixture[str]
) -> None:
    name, make = unreadable(places, release)[at]
    make()
    host = HostDouble()
    assert run(places, host) == {}, name
    assert capfd.readouterr().out.startswith("the order has "), name
    assert host.installed_ones == []


def refused(places: Places, release: Release, host: HostDouble, settings: upgrade.Settings = SETTINGS) -> str:
    result = run(places, host, settings)
    assert result["state"] == "REFUSED", result
    assert host.installed_ones == []
    assert not places.unfinished.exists()
    return str(result["found"])


def test_package_when_it_is_no_file_of_its_own_then_is_refused(places: Places, release: Release) -> None:
    for make, found in (
        (lambda path: path.symlink_to(places.root / "copy"), "can't be opened"),
        (os.mkfifo, "no plain one"),
        (lambda path: path.mkdir(), "no plain one"),
        (lambda path: None, "not there"),
        (lambda path: path.write_bytes(b""), "other bytes"),
        (lambda path: path.write_bytes(release.packages["0.3.0"] + b"\0"), "other bytes"),
        (lambda path: path.write_bytes(b"x" * len(release.packages["0.3.0"])), "other bytes"),
    ):
        (places.root / "copy").write_bytes(release.packages["0.3.0"])
        said = order(places, release)
        path = places.agent_state / "upgrade" / said["package"]["sha256"]
        path.unlink()
        make(path)  # type: ignore[operator]
        assert found in refused(places, release, HostDouble())
        (places.own / "result.json").unlink()
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def test_package_when_it_grows_without_end_while_it_is_copied_then_no_more_is_read_than_was_said(
    places: Places, release: Release
) -> None:
    said = order(places, release)
    path = places.agent_state / "upgrade" / said["package"]["sha256"]
    os.truncate(path, 1 << 40)
    assert "other bytes" in refused(places, release, HostDouble())
    copied = places.own / "work/package.tar.gz"
    assert copied.stat().st_size <= said["package"]["size_bytes"] + 1


def test_key_when_it_is_missing_or_others_could_have_written_it_then_nothing_is_done(
    places: Places, release: Release
) -> None:
    order(places, release)
    places.key.chmod(0o664)
    assert "others than root may have written" in refused(places, release, HostDouble())
    places.key.chmod(0o644)
    for folder_mode in (0o777, 0o755):
        (places.own / "result.json").unlink(missing_ok=True)
        places.key.parent.chmod(folder_mode)
        if folder_mode == 0o777:
            assert "others than root may have written" in refused(places, release, HostDouble())
    os.chown(places.key, 12345, 0)
    assert "others than root may have written" in refused(places, release, HostDouble())
    os.chown(places.key, 0, 0)
    (places.own / "result.json").unlink()
    places.key.rename(places.key.with_name("other.pem"))
    places.key.symlink_to("other.pem")
    assert "others than root may have written" in refused(places, release, HostDouble())
    places.key.unlink()
    (places.own / "result.json").unlink()
    assert "allows no upgrades" in refused(places, release, HostDouble())


def test_signature_when_it_is_of_another_key_or_of_other_sums_then_is_refused(
    places: Places, release: Release, tmp_path: Path
) -> None:
    stranger = replace(release, key=made_key(tmp_path))
    order(places, stranger)
    assert "not signed with this host's key" in refused(places, release, HostDouble())
    (places.own / "result.json").unlink()
    order(places, release, sums=base64.b64encode(release.sums() + b"\n").decode())
    assert "not signed with this host's key" in refused(places, release, HostDouble())
    (places.own / "result.json").unlink()
    said = order(places, release)
    said["way_back"]["signature"] = stranger.said("0.2.0")["signature"]
    (places.agent_state / "upgrade/order.json").write_text(json.dumps(said))
    assert "not signed with this host's key" in refused(places, release, HostDouble())


def test_package_when_the_publisher_has_signed_it_for_something_else_then_is_refused(
    places: Places, release: Release
) -> None:
    other = release.sums("mips")
    signed = {"sums": base64.b64encode(other).decode(), "signature": base64.b64encode(release.sign(other)).decode()}
    order(places, release, **signed)
    assert "has signed no menura-agent-0.3.0" in refused(places, release, HostDouble())
    (places.own / "result.json").unlink()
    order(places, release, "0.1.0", version="0.3.0")
    assert "has signed no menura-agent-0.3.0" in refused(places, release, HostDouble())
    (places.own / "result.json").unlink()
    release.add("0.4.0", inside="0.1.0")
    order(places, release, "0.4.0")
    assert "holds 'menura-agent 0.1.0'" in refused(places, release, HostDouble())


def test_version_when_it_is_older_then_only_what_the_last_upgrade_has_replaced_is_installed(
    places: Places, release: Release
) -> None:
    order(places, release, "0.1.0", "0.2.0")
    assert "0.1.0 is older than 0.2.0" in refused(places, release, HostDouble())
    host = HostDouble()
    order(places, release)
    assert run(places, host)["state"] == "DONE"
    order(places, release, "0.1.0", "0.3.0", starts=2)
    assert "0.1.0 is older" in run(places, host)["found"]
    former = release.packages["0.2.0"]
    release.packages["0.2.0"] = former + b"\0" * 512
    order(places, release, "0.2.0", "0.3.0", starts=2)
    assert "0.2.0 is older" in run(places, host)["found"]
    release.packages["0.2.0"] = former
    by_hand = HostDouble("0.4.0")
    release.add("0.4.0")
    order(places, release, "0.2.0", "0.4.0")
    assert "0.2.0 is older" in run(places, by_hand)["found"]
    del release.packages["0.4.0"]
    order(places, release, "0.2.0", "0.3.0", starts=2)
    assert run(places, host)["state"] == "DONE"
    assert host.installed_ones == ["0.3.0", "0.2.0"]


def test_version_when_the_way_back_is_another_or_it_runs_or_the_host_wants_newer_ones_then_is_refused(
    places: Places, release: Release
) -> None:
    order(places, release, "0.3.0", "0.1.0")
    assert "the way back is 0.1.0, and 0.2.0 is installed" in refused(places, release, HostDouble())
    order(places, release, "0.2.0", "0.2.0")
    assert "installed already" in refused(places, release, HostDouble())
    order(places, release)
    assert "nothing older than 0.10.0" in refused(
        places, release, HostDouble(), replace(SETTINGS, least_version="0.10.0")
    )


def test_order_when_the_service_does_not_run_or_there_is_no_room_or_too_many_came_then_is_refused(
    places: Places, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    order(places, release)
    assert "is inactive" in refused(places, release, HostDouble(active="inactive"))
    (places.own / "result.json").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(upgrade, "INSTALLED_BYTES", 1 << 60)
        assert "are needed" in refused(places, release, HostDouble())
    (places.own / "record.json").write_text(json.dumps({"began": [upgrade.time.time()] * upgrade.MOST_A_DAY}))
    (places.own / "result.json").unlink()
    assert "within a day" in refused(places, release, HostDouble())


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"invocation": "of another process"}, "the process that ordered it runs no more"),
        ({"at_boot_seconds": -upgrade.MOST_AGE_SECONDS - 1.0}, "it was confirmed 181 s ago"),
        ({"at_boot_seconds": 3600.0}, "it was confirmed -3600 s ago"),
        ({"at_boot_seconds": float("nan")}, "it was confirmed nan s ago"),
    ],
)
def test_order_when_nobody_confirms_it_any_more_then_is_not_begun_until_it_is_written_again(
    changes: dict[str, Any], found: str, places: Places, release: Release, capfd: pytest.CaptureFixture[str]
) -> None:
    said = order(places, release)
    if "at_boot_seconds" in changes:
        changes = {"at_boot_seconds": boot_seconds() + changes["at_boot_seconds"]}
    (places.agent_state / "upgrade/order.json").write_text(json.dumps(said | changes))
    host = HostDouble()
    assert run(places, host) == {}
    assert f"order 7: not begun: {found}" in capfd.readouterr().out
    assert host.installed_ones == []
    order(places, release)
    assert run(places, host)["state"] == "DONE"
    (places.agent_state / "upgrade/order.json").write_text(json.dumps(said | {"invocation": "start 2"}))
    run(places, host)
    assert host.installed_ones == ["0.3.0"]


def test_order_when_the_agent_takes_it_back_while_it_is_verified_then_nothing_is_installed(
    places: Places, release: Release, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    order(places, release)
    host = HostDouble()
    with monkeypatch.context() as patched:
        verify = upgrade.verify

        def verified(*arguments: Any) -> None:
            verify(*arguments)
            (places.agent_state / "upgrade/order.json").unlink(missing_ok=True)

        patched.setattr(upgrade, "verify", verified)
        assert run(places, host) == {}
    assert "not begun: the agent has taken it back" in capfd.readouterr().out
    assert (host.writes, places.unfinished.exists()) == (0, False)


def test_updater_when_another_one_is_at_work_then_does_nothing(
    places: Places, release: Release, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    order(places, release)
    monkeypatch.setattr(upgrade, "Places", lambda: places)
    with (places.own / "lock").open("w") as lock:
        upgrade.fcntl.flock(lock, upgrade.fcntl.LOCK_EX)
        assert upgrade.main() == 0
    assert "another updater is at work" in capsys.readouterr().err
    assert not (places.own / "result.json").exists()


@pytest.mark.parametrize(("bad", "state", "left"), [((), "DONE", "0.3.0"), (("0.3.0",), "ROLLED_BACK", "0.2.0")])
def test_updater_when_it_is_killed_at_any_step_then_the_next_run_ends_at_the_same_version_and_result(
    bad: tuple[str, ...], state: str, left: str, places: Places, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, died = 0, True
    while died:
        number += 1
        shutil.rmtree(places.own)
        places.own.mkdir()
        order(places, release)
        host = HostDouble(bad=bad)
        with monkeypatch.context() as patched:
            calls = [0]
            _count(patched, calls, number)
            try:
                run(places, host)
            except Killed:
                died = True
            else:
                died = False
        result = run(places, host)
        assert (result["state"], host.version) == (state, left), number
        assert not places.unfinished.exists(), number
    assert number > 30


def _count(patched: pytest.MonkeyPatch, calls: list[int], number: int) -> None:
    """Dies before the call of this number of whatever makes something durable, or installs."""

    def wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            calls[0] += 1
            if calls[0] == number:
                raise Killed
            return call(*arguments, **named)

        return counted

    patched.setattr(Path, "rename", wrapped(Path.rename))
    patched.setattr(os, "fsync", wrapped(os.fsync))
    patched.setattr(shutil, "rmtree", wrapped(shutil.rmtree))
    patched.setattr(HostDouble, "install", wrapped(HostDouble.install))
    patched.setattr(HostDouble, "start", wrapped(HostDouble.start))


def test_updater_when_its_installation_kills_it_each_time_then_goes_back(
    places: Places, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    order(places, release)
    host, install = HostDouble(), HostDouble.install

    def deadly(self: HostDouble, kind: str, path: Path) -> None:
        if path.name.startswith("package"):
            self.writes += 1
            raise Killed
        install(self, kind, path)

    monkeypatch.setattr(HostDouble, "install", deadly)
    for _ in range(upgrade.MOST_ATTEMPTS):
        with pytest.raises(Killed):
            run(places, host)
    assert "interrupted 3 times" in run(places, host)["found"]
    assert host.installed_ones == ["0.2.0"]


def watched(places: Places, host: HostDouble, former: str, seconds: int = 30) -> str:
    journal = upgrade.Journal("", 7, "tar", "0.2.0", "", "0.3.0", former, "", [])
    return upgrade.watch(places, host, journal, "0.3.0", former, seconds, lambda seconds: None)


@pytest.mark.parametrize(
    ("before", "after", "state", "found"),
    [
        ({"shop": "", "stock": ""}, {"shop": "", "stock": ""}, "DONE", ""),
        ({"shop": "", "stock": "SOURCE_UNREACHABLE"}, {"shop": "", "stock": "SOURCE_UNREACHABLE"}, "DONE", ""),
        ({"shop": "", "stock": ""}, {"shop": "", "stock": "LOG_UNREADABLE"}, "ROLLED_BACK", "stock: LOG_UNREADABLE"),
        ({"shop": "", "stock": ""}, {"shop": ""}, "ROLLED_BACK", "stock: gone"),
        ({"shop": ""}, {}, "ROLLED_BACK", "did not say how its sources are"),
        ({"shop": "A", "st\x1bock": "B"}, {"shop": ""}, "REFUSED", "all sources are in error"),
        ({}, {"shop": ""}, "REFUSED", "has not said how its sources are"),
    ],
)
def test_version_when_it_is_connected_then_is_well_if_no_other_source_is_in_error_than_before(
    before: dict[str, str], after: dict[str, str], state: str, found: str, places: Places, release: Release
) -> None:
    order(places, release)
    result = run(places, HostDouble(sources={"0.2.0": before, "0.3.0": after}))
    assert (result["state"], found in result["found"]) == (state, True), result
    assert result["found"].isprintable()


def test_sources_when_the_agent_has_written_something_else_then_are_unknown(places: Places) -> None:
    file = places.agent_state / "upgrade-sources.json"
    whole = '{"format": 1, "invocation": "now", "sources": {"shop": ""}}'
    file.write_text(whole)
    assert orders.read_sources(places, "now") == {"shop": ""}
    assert orders.read_sources(places, "before") is None
    long = whole.replace("shop", "s" * orders.MAX_SOURCES_BYTES)
    for text in ("", "[]", "7", "[" * 100_000, long, whole.replace('""', "7"), whole.replace('{"shop": ""}', "[]")):
        file.write_text(text)
        assert orders.read_sources(places, "now") is None
    file.unlink()
    os.mkfifo(file)
    assert orders.read_sources(places, "now") is None
    file.unlink()
    file.symlink_to("/etc/passwd")
    assert orders.read_sources(places, "now") is None


def test_service_when_it_fails_or_is_not_started_anew_or_is_another_version_then_is_not_well(
    places: Places,
) -> None:
    def judged(service: Service, former: str = "before") -> str:
        class Host(HostDouble):
            def service(self) -> Service:
                return service

        return watched(places, Host(), former)

    (places.agent_state / "upgrade-sources.json").write_text('{"format": 1, "invocation": "new", "sources": {}}')
    well = Service("active", "new", "version 0.3.0; gateway connected; 1 sources", "0", "0")
    assert judged(well) == ""
    assert "was not started anew" in judged(well, "new")
    assert "failed with exit status 10" in judged(replace(well, active="failed", exit_status="10"))
    assert "did not run" in judged(replace(well, status="version 0.2.0; gateway connected; 1 sources"))
    assert "did not run" in judged(replace(well, active="activating"))
    assert "no gateway was reached" in judged(replace(well, status="version 0.3.0; gateway not connected; 1 sources"))


def test_service_when_it_is_started_again_and_again_then_is_not_well_though_each_reaches_a_gateway(
    places: Places,
) -> None:
    class Host(HostDouble):
        def service(self) -> Service:
            self.starts += 1
            up = self.starts % upgrade.WELL_SECONDS
            status = f"version 0.3.0; gateway {'connected' if up else 'not connected'}; 1 sources"
            invocation = f"start {self.starts // upgrade.WELL_SECONDS}"
            said = {"format": 1, "invocation": invocation, "sources": {}}
            (places.agent_state / "upgrade-sources.json").write_text(json.dumps(said))
            return Service("active", invocation, status, "0", "9")

    assert "no gateway was reached" in watched(places, Host(), "before", 60)


def test_order_value_when_it_is_made_then_is_what_was_written(places: Places, release: Release) -> None:
    said = order(places, release)
    found = orders.read_order(places)
    assert isinstance(found, Order)
    assert isinstance(found.package, Package)
    assert (found.generation, found.package.sha256) == (7, said["package"]["sha256"])
    assert this_host.SERVICE == "menura-agent.service"
