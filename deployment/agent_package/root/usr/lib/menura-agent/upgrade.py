"""Installs another version of the agent on this host; root runs it as menura-agent-upgrade.service.

::

    state folder of the agent: upgrade/order.json, packages     hostile, and may change at any moment
        │ copied and verified: `orders`
    unfinished/  the packages, these modules, journal.json      durable from here on: what has begun is done or undone
        │ check ▶ install ▶ watch ─▶ end: DONE                  a gateway acknowledged it, no other source is in error
        │                 └──▶ back ▶ end: ROLLED_BACK          the former package is installed again
        │                 └──▶ end: REFUSED                     the installation failed, and has changed nothing
    record.json, result.json                                    what may be gone back to; what the agent tells

A kill before `unfinished` is there leaves the former version and the order, which is looked at again. One after it
leaves the journal: the next run, at the boot or for an order, repeats the step at which it stands, by the modules that
began it. An order counts while the process that wrote it runs, and for minutes by the time since the boot, which nobody
sets. The agent takes it back by removing it, which `check` sees. What has ended is in the journal before it is told. A
way back that fails is told at once, and tried again; a newer order takes its place. Nothing is begun without the
publisher's key, which root alone can put there. Standard library only.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from orders import (
    EXTENSION,
    FORMAT,
    ORDER_AGAIN,
    Order,
    check_key,
    check_rank,
    copy_package,
    named,
    rank,
    read_order,
    read_sources,
    verify,
)
from this_host import SERVICE, Host, InstallFailed, Places, Refused, sync, write_whole

#: beside the copies of packages: a version that is installed, and the one that it replaces
INSTALLED_BYTES = 256 << 20
#: whatever an agent orders
MOST_A_DAY, DAY_SECONDS = 12, 86_400
MOST_ATTEMPTS = 3
#: ways back that fail, one in five minutes: then the next boot or order tries again
MOST_WAYS_BACK = 288
#: for which a new version has to be well
WELL_SECONDS = 10
#: of an order; the agent writes it again each minute as long as a gateway desires it
MOST_AGE_SECONDS = 180
#: after a refusal: whoever orders again and again gets no more
PAUSE_SECONDS = 2
UPDATER = "menura-agent-upgrade.service"

Wait = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Settings:
    wait_seconds: int = 180
    least_version: str = ""
    #: the one that can't be used: no order is begun with it
    wrong: str = ""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Settings":
        """
        >>> Settings.of({"MENURA_UPGRADE_WAIT_SECONDS": "5"})
        Settings(wait_seconds=30, least_version='', wrong='')
        >>> Settings.of({"MENURA_UPGRADE_LEAST_VERSION": "0.3"}).wrong
        "MENURA_UPGRADE_LEAST_VERSION is '0.3', and no version such as 0.4.2"
        """
        seconds, least = (environment.get(f"MENURA_UPGRADE_{name}", "") for name in ("WAIT_SECONDS", "LEAST_VERSION"))
        wait_seconds, wrong = 180, ""
        if seconds.isascii() and seconds.isdigit() and len(seconds) < 10:
            wait_seconds = min(max(int(seconds), 30), 3600)
        elif seconds:
            wrong = f"MENURA_UPGRADE_WAIT_SECONDS is {seconds[:80]!r}, and no number of seconds"
        try:
            rank(least or "0.0.0")
        except ValueError:
            wrong = f"MENURA_UPGRADE_LEAST_VERSION is {least[:80]!r}, and no version such as 0.4.2"
        return cls(wait_seconds, least, wrong)


@dataclass(frozen=True, slots=True)
class Journal:
    digest: str
    generation: int
    kind: str
    former: str
    former_sha256: str
    version: str
    #: of the service, before
    invocation: str
    #: of the installed files, before
    files: str
    #: sources that had no error, before
    well: list[str]
    #: check, install, watch, back or end
    step: str = "check"
    attempts: int = 0
    reason: str = ""
    #: at the end: what is told
    state: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    #: that the last upgrade has installed
    version: str = ""
    #: of the package that it replaced
    former: str = ""
    former_sha256: str = ""
    #: upgrades of the last day, in seconds since the epoch
    began: list[float] = field(default_factory=list)


def begin(places: Places, host: Host, settings: Settings, order: Order) -> Journal:
    """Verified copies, durable, with their journal. Raises `Refused`."""
    check_key(places)
    if settings.wrong:
        raise Refused(settings.wrong, f"its owner may correct it: systemctl edit {UPDATER}, {ORDER_AGAIN}")
    kind, installed = host.installed()
    record = _record(places)
    replaced = (record.version, record.former, record.former_sha256)
    check_rank(order, installed, replaced, settings.least_version)
    now = time.time()
    began = [at for at in record.began if 0 <= now - at < DAY_SECONDS]
    if len(began) >= MOST_A_DAY:
        raise Refused(f"{MOST_A_DAY} upgrades have begun here within a day", f"wait a day, {ORDER_AGAIN}")
    service = host.service()
    if service.active != "active":
        found = f"{SERVICE} is {service.active or 'unknown to systemd'}"
        raise Refused(found, f"run systemctl start {SERVICE} on the host, {ORDER_AGAIN}")
    sources = read_sources(places, service.invocation)
    if sources is None:
        raise Refused("the agent has not said how its sources are", f"read journalctl --unit {SERVICE}, {ORDER_AGAIN}")
    well = [name for name, code in sources.items() if not code]
    if sources and not well:
        found = f"all sources are in error, so nobody could see whether another version is well: {named([*sources])}"
        raise Refused(found, "mend the sources, then resume the rollout")
    work = places.own / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(mode=0o700)
    free, packages = shutil.disk_usage(work).free, order.package.size_bytes + order.way_back.size_bytes
    if free < 2 * packages + INSTALLED_BYTES:
        found = f"{free >> 20} MiB are free at {places.own}, and {2 * packages + INSTALLED_BYTES >> 20} are needed"
        raise Refused(found, f"make room, {ORDER_AGAIN}")
    for name, package in (("package", order.package), ("way_back", order.way_back)):
        copy = work / f"{name}.{EXTENSION[kind]}"
        copy_package(places, package, copy)
        verify(places, copy, package, kind)
    for module in Path(__file__).parent.glob("*.py"):
        write_whole(work / module.name, module.read_bytes())
    _write(places.own / "record.json", replace(record, began=[*began, now]))
    back = order.way_back
    journal = Journal(
        order.digest, order.generation, kind, back.version, back.sha256, order.package.version, service.invocation,
        host.files(), well,
    )  # fmt: skip
    _write(work / "journal.json", journal)
    _forget(places)  # a way back that fails, and was told
    work.rename(places.unfinished)
    sync(places.own)
    return journal


def finish(places: Places, host: Host, settings: Settings, journal: Journal, wait: Wait) -> None:
    """From the step at which it stands. Raises `InstallFailed` where the former version can't be installed again."""
    if journal.step == "check":
        if over := _over(places, host, journal.digest):
            print(f"order {journal.generation}: not begun: {over}", flush=True)
            _forget(places)
            return
        journal = _go(places, journal, "install")
    if journal.step == "install":
        journal = _install(places, host, journal)
    if journal.step == "watch":
        host.start()
        reason = watch(places, host, journal, journal.version, journal.invocation, settings.wait_seconds, wait)
        journal = _go(places, journal, "back", reason) if reason else _go(places, journal, "end", state="DONE")
    if journal.step == "back":
        journal = _go_back(places, host, settings, journal, wait)
    _end(places, journal)


def _over(places: Places, host: Host, digest: str) -> str:
    """Why the order of this digest does not count now, empty: it does. It is not told: the agent may order it again."""
    try:
        order = read_order(places)
    except Refused as refused:
        return str(refused)
    if order is None or order.digest != digest:
        return "the agent has taken it back"
    if order.invocation != host.service().invocation:
        return "the process that ordered it runs no more, and the present one has not confirmed it"
    age_seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - order.at_boot_seconds
    if not 0 <= age_seconds <= MOST_AGE_SECONDS:
        return f"it was confirmed {age_seconds:.0f} s ago, and counts for {MOST_AGE_SECONDS} s"
    return ""


def _install(places: Places, host: Host, journal: Journal) -> Journal:
    reason = f"its installation was interrupted {MOST_ATTEMPTS} times"
    if journal.attempts < MOST_ATTEMPTS:
        print(f"order {journal.generation}: installing {journal.version} in place of {journal.former}", flush=True)
        _write(places.unfinished / "journal.json", replace(journal, attempts=journal.attempts + 1))
        try:
            host.install(journal.kind, places.unfinished / f"package.{EXTENSION[journal.kind]}")
        except (InstallFailed, OSError, subprocess.TimeoutExpired) as failed:
            reason = str(failed)
        else:
            return _go(places, journal, "watch")
    if not _is_untouched(host, journal):
        return _go(places, journal, "back", reason)
    reason = f"{journal.version} can't be installed, and {journal.former} was left as it was: {reason}"
    return _go(places, journal, "end", reason, "REFUSED", f"Mend the cause on the host, {ORDER_AGAIN}")


def _is_untouched(host: Host, journal: Journal) -> bool:
    """The former version runs on, and no file of it was written."""
    try:
        is_installed = host.installed() == (journal.kind, journal.former)
    except Refused:
        return False
    service = host.service()
    runs = (service.active, service.invocation) == ("active", journal.invocation)
    return is_installed and runs and host.files() == journal.files


def _go_back(places: Places, host: Host, settings: Settings, journal: Journal, wait: Wait) -> Journal:
    print(f"order {journal.generation}: back to {journal.former}: {journal.reason}", flush=True)
    journal = replace(journal, attempts=journal.attempts + 1)
    _write(places.unfinished / "journal.json", journal)
    new = host.service().invocation
    remedy = f"Read journalctl --unit {SERVICE} --unit {UPDATER} on the host, mend the cause, {ORDER_AGAIN}"
    try:
        host.install(journal.kind, places.unfinished / f"way_back.{EXTENSION[journal.kind]}")
    except (InstallFailed, OSError, subprocess.TimeoutExpired) as failed:
        found = f"{journal.version} was to be installed, and then {journal.former} again: {journal.reason}"
        found += f"; the way back has failed {journal.attempts} times, and the agent may not run: {failed}"
        _say(places, journal, "ROLLED_BACK", found, remedy)
        raise
    host.start()
    found = f"{journal.version} was installed, and then {journal.former} again: {journal.reason}"
    not_well = watch(places, host, journal, journal.former, new, settings.wait_seconds, wait)
    if not_well:
        found += f"; {journal.former} is not well either, so it may be no fault of {journal.version}: {not_well}"
    return _go(places, journal, "end", found, "ROLLED_BACK", remedy)


def _end(places: Places, journal: Journal) -> None:
    if journal.state == "DONE":
        began = _record(places).began
        _write(places.own / "record.json", Record(journal.version, journal.former, journal.former_sha256, began))
    _say(places, journal, journal.state, journal.reason, journal.remedy)
    _forget(places)


def _go(places: Places, journal: Journal, step: str, reason: str = "", state: str = "", remedy: str = "") -> Journal:
    made = replace(journal, step=step, attempts=0, reason=reason, state=state, remedy=remedy)
    _write(places.unfinished / "journal.json", made)
    return made


def _forget(places: Places) -> None:
    """All of it at once, where there is any: no run finds a part."""
    gone = places.own / "gone"
    shutil.rmtree(gone, ignore_errors=True)
    if places.unfinished.exists():
        places.unfinished.rename(gone)
        sync(places.own)
    shutil.rmtree(gone, ignore_errors=True)


def watch(
    places: Places, host: Host, journal: Journal, version: str, former: str, wait_seconds: float, wait: Wait
) -> str:
    """Until a process of this version is well, or has had its time; why it is not, empty where it is.

    `former`: the service's invocation before. What the process says of itself, systemd has from no other one. Well: a
    gateway has acknowledged it, and each source that had no error before the upgrade has none.
    """
    left, well_seconds, well = wait_seconds, 0, ""
    while True:
        service = host.service()
        is_new = service.invocation not in ("", former)
        runs = is_new and service.active == "active" and service.status.startswith(f"version {version}; ")
        reached = runs and service.status.startswith(f"version {version}; gateway connected")
        unwell = _unwell(places, journal, service.invocation) if reached else ""
        if reached and not unwell:
            well_seconds = well_seconds + 1 if service.invocation == well else 0
            well = service.invocation
            if well_seconds >= WELL_SECONDS:
                return ""
        else:
            well_seconds, well = 0, ""
        if service.active == "failed":
            return f"the service has failed with exit status {service.exit_status}"
        if left <= 0 and not well:
            break
        wait(1)
        left -= 1
    within = f"within {wait_seconds:.0f} s"
    if unwell:
        return f"{unwell} {within}"
    if runs:
        return f"no gateway was reached {within}, and the agent said: {service.status}"
    if not is_new:
        return f"the service was not started anew {within}; it is {service.active}"
    ended = f"it was started {service.restarts} times again, its last exit status is {service.exit_status}"
    return f"it did not run {within}: the service is {service.active}, {ended}"


def _unwell(places: Places, journal: Journal, invocation: str) -> str:
    """Which sources of this process are in error, that were not before; empty: none."""
    sources = read_sources(places, invocation)
    if sources is None:
        return "the new process did not say how its sources are"
    failed = [f"{name}: {sources.get(name, 'gone')}" for name in journal.well if sources.get(name, "gone")]
    return f"sources that were well before did not become it, {named(failed)}," if failed else ""


def run(places: Places, host: Host, settings: Settings, wait: Wait = time.sleep) -> None:
    """Whatever there is to do, and what is ordered meanwhile. Raises what the way back raised, where it failed last."""
    failed: Exception | None = None
    if found := _read(places.unfinished / "journal.json"):
        try:
            finish(places, host, settings, Journal(**found), wait)
        except (InstallFailed, OSError, subprocess.TimeoutExpired) as again:
            failed = again
    answered = str(_read(places.own / "result.json").get("order", ""))
    while True:
        try:
            order = read_order(places)
        except Refused as refused:
            print(f"{refused}; {refused.remedy}", flush=True)
            wait(PAUSE_SECONDS)
            order = None
        if order is None or order.digest == answered:
            if failed is not None:
                raise failed
            return
        if over := _over(places, host, order.digest):
            print(f"order {order.generation}: not begun: {over}", flush=True)
            wait(PAUSE_SECONDS)
            if failed is not None:
                raise failed
            return
        try:
            journal = begin(places, host, settings, order)
        except Refused as refused:
            _say(places, order, "REFUSED", str(refused), refused.remedy)
            wait(PAUSE_SECONDS)
        else:
            failed = None  # what was told, and can't be ended, is in the place of this one no more
            finish(places, host, settings, journal, wait)
        answered = order.digest


def _say(places: Places, order: Order | Journal, state: str, found: str, remedy: str) -> None:
    """To the agent, and to the host's log."""
    print(f"order {order.generation}: {state}" + (f": {found}; {remedy}" if found else ""), flush=True)
    former, version = (order.way_back.version, order.package.version) if isinstance(order, Order) else (
        order.former, order.version
    )  # fmt: skip
    told = {"format": FORMAT, "order": order.digest, "generation": order.generation, "state": state, "former": former}
    told |= {"version": version, "found": found, "remedy": remedy, "at_us": time.time_ns() // 1000}
    write_whole(places.own / "result.json", json.dumps(told).encode(), 0o644)


def _record(places: Places) -> Record:
    found = _read(places.own / "record.json")
    return Record(**{each.name: found[each.name] for each in fields(Record) if each.name in found})


def _read(path: Path) -> dict[str, Any]:
    """Of a file that root has written; empty where there is none."""
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    return found


def _write(path: Path, value: Journal | Record) -> None:
    write_whole(path, json.dumps(asdict(value)).encode())


def main() -> int:
    os.umask(0o022)
    places = Places()
    places.own.mkdir(mode=0o755, exist_ok=True)
    with (places.own / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another updater is at work; this one has done nothing", file=sys.stderr)
            return 0
        try:
            run(places, Host(places), Settings.of(os.environ))
        except (InstallFailed, OSError, subprocess.TimeoutExpired) as failed:
            attempts = int(_read(places.unfinished / "journal.json").get("attempts", 0))
            is_last = attempts >= MOST_WAYS_BACK
            when = f"at the next boot, order, or systemctl start {UPDATER}" if is_last else "in five minutes"
            print(f"the upgrade is not at its end, and is tried again {when}: {failed}", file=sys.stderr)
            return 0 if is_last else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
