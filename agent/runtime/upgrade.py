"""Brings what a gateway orders to this host's updater, and tells the gateway how far it is.

::

    DesiredVersion ─▶ checked ─▶ PackageRequest ⇄ PackagePiece, one at a time ─▶ `upgrade_files`: packages, order
                      refused: EffectiveVersion says why           the updater: verifies, installs, restarts, answers

The agent runs and installs nothing: it has no right to. The host's owner allows upgrades by a key, without which
nothing is fetched. A break of the stream, or a kill, leaves the parts that came; the next stream goes on behind them.
The order is durable before the agent says INSTALLING, and the process after the restart finds it and the updater's
result. An order that was refused or rolled back is over: a gateway makes another one, with a higher generation.

The updater takes an order only from the process that wrote it, and within minutes: it is written again as long as the
gateway of the present stream desires it. A DesiredVersion without a package takes it back: the order goes first, then
the look whether the updater has begun it, which looks for the order again before it installs anything.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from platform import machine

from menura.error_message import as_message
from menura.v1 import config_pb2, stream_pb2

from agent.errors import GatewayError, UpgradeDelayed, UpgradeError, UpgradeRefused, UpgradeRolledBack, defect
from agent.runtime.commands import Bucket
from agent.runtime.session import StreamClosed, StreamWriter
from agent.runtime.upgrade_files import NoOrder, Order, OrderFolder, Package, Result, UpgradePlaces

log = logging.getLogger("menura.upgrade")

MAX_PIECE_BYTES = 128 << 10
#: for an answer, then it is asked again
PIECE_SECONDS = 60.0
#: between two looks at what the host may have changed, and two tries of what failed
LOOK_SECONDS, RETRY_SECONDS = 2.0, 30.0
#: the order is written again so often, until it has an answer: the updater may have ended just before it came
REMIND_SECONDS, STUCK_SECONDS = 60.0, 900.0
#: between two reports of a download
REPORT_SECONDS = 1.0
#: a fetch that fails so often is refused
MOST_DELAYS = 20
#: packages that are begun, whatever a gateway orders
BEGINS_PER_SECOND, BURST_BEGINS = 1 / 60, 20
_State = config_pb2.EffectiveVersion
_GOES_ON = "The agent goes on in its version, and nothing is lost"


class _Interrupted(Exception):
    """The stream ended, something else is desired, or the agent ends."""


@dataclass(frozen=True, slots=True)
class _Said:
    state: "config_pb2.EffectiveVersion.State"
    generation: int = 0
    downloaded_bytes: int = 0
    error: UpgradeError | None = None


class Upgrade:
    """`opened`, `closed`, `desire`, `took` and `refused` come from the Control_Config stream's thread; none blocks."""

    def __init__(
        self,
        places: UpgradePlaces,
        version: str,
        clock: Callable[[], float] = time.monotonic,
        form: str | None = None,
        sources: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`form`: in which the agent is packaged, where it is not looked up; `sources`: the codes of their errors."""
        self._places = places
        self._sources = sources
        self._version = version
        self._clock = clock
        self._form = places.packaged_as() if form is None else form
        self._folder = OrderFolder(places.folder)
        self._ordered = self._folder.read()
        self._ordered_at = clock()
        #: another process has written what is there
        self._reminded_at = clock() - REMIND_SECONDS
        self._begins = Bucket(BEGINS_PER_SECOND, BURST_BEGINS, clock)
        self._changed = threading.Condition()
        self._writer: StreamWriter | None = None
        self._desired: config_pb2.DesiredVersion | None = None
        self._is_due = False
        self._stopping = False
        #: of what is desired
        self._delays = 0
        #: what is asked for, and its answer
        self._asked: tuple[str, int] | None = None
        self._piece: bytes | None = None
        self._refusal: GatewayError | None = None
        self._told: tuple[StreamWriter, config_pb2.EffectiveVersion] | None = None
        self._reported_at = 0.0
        self._thread = threading.Thread(target=self._run, name="upgrade", daemon=True)
        self._thread.start()

    # --- by Control_Config

    def opened(self, writer: StreamWriter) -> None:
        with self._changed:
            self._writer, self._is_due = writer, True
            self._changed.notify_all()

    def closed(self) -> None:
        with self._changed:
            self._writer = self._desired = None  # the next stream says again what is desired
            self._changed.notify_all()

    def desire(self, desired: config_pb2.DesiredVersion) -> None:
        with self._changed:
            if desired != self._desired:
                self._delays = 0
            self._desired, self._is_due = desired, True
            self._changed.notify_all()

    def took(self, piece: config_pb2.PackagePiece) -> None:
        with self._changed:
            if self._asked == (piece.sha256, piece.offset):
                self._piece = piece.data
                self._changed.notify_all()

    def refused(self, error: GatewayError) -> None:
        with self._changed:
            if self._asked is not None:
                self._refusal = error
                self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    # --- the thread

    def _run(self) -> None:
        wait_seconds: float | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._is_due, wait_seconds)
                if self._stopping:
                    return
                self._is_due = False
                desired, writer = self._desired, self._writer
            if writer is None:
                wait_seconds = None  # nobody hears of it; `opened` comes
                continue
            try:
                wait_seconds = self._step(desired, writer)
            except _Interrupted:
                wait_seconds = LOOK_SECONDS
            except UpgradeError as error:
                wait_seconds = self._failed(error, desired, writer)
            except Exception as unexpected:
                log.exception("defect", extra={"fields": {"thread": self._thread.name}})
                found = defect("upgrading the agent", unexpected, "")
                refused = UpgradeRefused(found.doing, found.found, data=_GOES_ON, remedy=found.remedy)
                wait_seconds = self._failed(refused, desired, writer)

    def _failed(
        self, error: UpgradeError, desired: config_pb2.DesiredVersion | None, writer: StreamWriter
    ) -> float | None:
        """Seconds until it is tried again; None: the order is over, and another one may come."""
        self._delays += 1
        generation = self._generation(desired)
        if isinstance(error, UpgradeDelayed) and self._delays <= MOST_DELAYS:
            self._tell(writer, _Said(_State.DOWNLOADING, generation, 0, error))
            return RETRY_SECONDS
        if isinstance(error, UpgradeDelayed):
            error = _refused(f"{error.found}, {self._delays} times", error.remedy)
        self._tell(writer, _Said(_State.REFUSED, generation, 0, error))
        return None

    def _generation(self, desired: config_pb2.DesiredVersion | None) -> int:
        if desired is not None:
            return desired.generation
        return 0 if self._ordered is None else self._ordered.generation

    def _step(self, desired: config_pb2.DesiredVersion | None, writer: StreamWriter) -> float | None:
        """Says what is so; seconds until it can be otherwise by itself, None: it can't. Raises an `UpgradeError`."""
        if desired is not None and not desired.HasField("package"):
            return self._take_back(desired.generation, writer)
        ordered = self._ordered
        if desired is None:
            if ordered is None:
                self._tell(writer, _Said(_State.RUNNING))
                return None
            generation, version = ordered.generation, ordered.package.version
        else:
            generation, version = desired.generation, desired.package.version
        is_ordered = ordered is not None and (ordered.generation, ordered.package.version) == (generation, version)
        result = self._places.last_result()
        if is_ordered and result is not None and (result.generation, result.version) == (generation, version):
            self._tell(writer, _answered(result))
            return None
        if is_ordered and (version != self._version or self._waited_seconds() < STUCK_SECONDS):
            self._remind(writer, generation, is_desired=desired is not None)
            return LOOK_SECONDS
        if version == self._version or desired is None:
            self._tell(writer, _Said(_State.RUNNING, generation))
            return None
        self._check_host()
        self._order(desired, writer)
        return LOOK_SECONDS

    def _waited_seconds(self) -> float:
        return self._clock() - self._ordered_at

    def _take_back(self, generation: int, writer: StreamWriter) -> float | None:
        """Nothing is desired any more; what the updater has begun ends as it ends."""
        try:
            self._folder.clear()
        except OSError as kept:
            found = f"its order can't be removed: {kept.strerror or type(kept).__name__}"
            mend = f"Let the agent's user write to {self._places.folder}; the host takes no order that is minutes old"
            error = UpgradeDelayed("taking an upgrade back", found, data=_GOES_ON, remedy=mend)
            self._tell(writer, _Said(_State.INSTALLING, generation, 0, error))
            return RETRY_SECONDS
        self._ordered = None
        if self._places.is_at_work():
            self._tell(writer, _Said(_State.INSTALLING, generation))
            return LOOK_SECONDS
        self._tell(writer, _Said(_State.RUNNING, generation))
        return None

    def _remind(self, writer: StreamWriter, generation: int, *, is_desired: bool) -> None:
        """The order is there, and its answer is not; written again only while the gateway of this stream desires it."""
        assert self._ordered is not None
        if is_desired and self._clock() - self._reminded_at >= REMIND_SECONDS:
            self._reminded_at = self._clock()
            self._write(self._ordered)
        error = None
        if self._waited_seconds() >= STUCK_SECONDS:
            error = UpgradeDelayed(
                "upgrading the agent",
                f"the host's updater has not answered for {STUCK_SECONDS / 60:.0f} minutes",
                data=_GOES_ON,
                remedy="Run on the host: systemctl status menura-agent-upgrade.path menura-agent-upgrade.service",
            )
        self._tell(writer, _Said(_State.INSTALLING, generation, 0, error))

    def _check_host(self) -> None:
        """Raises `UpgradeRefused`."""
        if not self._form:
            raise _refused(
                "this agent was not installed as a package",
                "Install the agent's package on its host once: docs/install-agent.md",
            )
        if not self._places.allows():
            raise _refused(
                f"the host allows no upgrades: there is no {self._places.key}",
                "Its owner may put the publisher's public key there: docs/install-agent.md",
            )
        codes = self._sources()
        if codes and all(codes.values()):
            named = ", ".join(f"{name}: {code}" for name, code in list(codes.items())[:5])
            raise _refused(
                f"all sources are in error, so nobody could see whether another version is well: {named}",
                "Mend the sources, then resume the rollout",
            )

    def _order(self, desired: config_pb2.DesiredVersion, writer: StreamWriter) -> None:
        """Fetch both packages, then order. Raises an `UpgradeError`."""
        try:
            order = Order.of(desired)
        except NoOrder as strange:
            one = "Use the same version of Menura on both sides, then order the upgrade again"
            raise _refused(f"the gateway orders {strange}", one) from strange
        try:
            self._folder.begin(order)
            if lacking := self._folder.lacks_bytes(order):
                mend = f"Make room: {(lacking >> 20) + 1} MiB more"
                raise _refused(f"there is no room in {self._places.folder} for its packages", mend)
            for before, package in ((0, order.package), (order.package.size_bytes, order.way_back)):
                self._fetch(desired, package, before, writer)
        except OSError as full:
            raise _disk(full, self._places) from full
        self._write(order)
        self._ordered, self._ordered_at, self._reminded_at = order, self._clock(), self._clock()
        log.info(
            "upgrade ordered", extra={"fields": {"generation": order.generation, "version": order.package.version}}
        )
        self._tell(writer, _Said(_State.INSTALLING, order.generation))

    def _write(self, order: Order) -> None:
        try:
            self._folder.write(order)
        except OSError as full:
            raise _disk(full, self._places) from full

    def _fetch(self, desired: config_pb2.DesiredVersion, package: Package, before: int, writer: StreamWriter) -> None:
        size = self._folder.size(package)
        if size < package.size_bytes and self._begins.take():
            raise _delayed("the gateway has orders begun more often than this host does", "It goes on by itself")
        while size < package.size_bytes:
            self._report(writer, _Said(_State.DOWNLOADING, desired.generation, before + size))
            data = self._ask(desired, package.sha256, size, writer)
            if not data or len(data) > min(MAX_PIECE_BYTES, package.size_bytes - size):
                raise _delayed(f"a piece of {len(data)} bytes at {size} of {package.size_bytes}", "It is tried again")
            self._folder.append(package, data)
            size += len(data)
            if size == package.size_bytes and not self._folder.complete(package):
                raise _delayed(
                    f"the bytes of {package.version} are not those that its digest names",
                    "It is fetched anew; if it repeats, add the release to the control plane again",
                )

    def _ask(self, desired: config_pb2.DesiredVersion, sha256: str, offset: int, writer: StreamWriter) -> bytes:
        """Raises `UpgradeDelayed`, `_Interrupted`."""

        def is_over() -> bool:
            return self._stopping or self._writer is not writer or self._desired != desired

        request = config_pb2.PackageRequest(sha256=sha256, offset=offset)
        with self._changed:
            self._asked, self._piece, self._refusal = (sha256, offset), None, None
        try:
            while True:
                self._send(writer, stream_pb2.StreamResponse(package_request=request))
                with self._changed:
                    self._changed.wait_for(lambda: is_over() or self._piece is not None or self._refusal, PIECE_SECONDS)
                    if is_over():
                        raise _Interrupted
                piece, refusal = self._answer()
                if refusal is not None:
                    found = f"the gateway gives no piece of the package: {refusal.found}"
                    raise _delayed(found, refusal.remedy or "It is asked again by itself")
                if piece is not None:
                    return piece
        finally:
            with self._changed:
                self._asked = None

    def _answer(self) -> tuple[bytes | None, GatewayError | None]:
        with self._changed:
            return self._piece, self._refusal

    def _report(self, writer: StreamWriter, said: _Said) -> None:
        if self._clock() - self._reported_at >= REPORT_SECONDS:
            self._reported_at = self._clock()
            self._tell(writer, said)

    def _tell(self, writer: StreamWriter, said: _Said) -> None:
        """Once to each stream, as long as it stays so."""
        found = config_pb2.EffectiveVersion(
            generation=said.generation,
            version=self._version,
            format=self._form,
            machine=machine(),
            state=said.state,
            downloaded_bytes=said.downloaded_bytes,
        )
        if said.error is not None:
            found.error.CopyFrom(as_message(said.error))
            found.error.at_us = 0  # it is the same as long as it stays so
        if self._told is not None and self._told[0] is writer and self._told[1] == found:
            return
        if said.error is not None:
            log.warning("upgrade", extra={"fields": {"generation": said.generation, "error": str(said.error)}})
        self._told = writer, config_pb2.EffectiveVersion.FromString(found.SerializeToString())
        if said.error is not None:
            found.error.CopyFrom(as_message(said.error))
        try:
            self._send(writer, stream_pb2.StreamResponse(effective_version=found))
        except _Interrupted:
            self._told = None

    @staticmethod
    def _send(writer: StreamWriter, response: stream_pb2.StreamResponse) -> None:
        try:
            writer.send(response)
        except StreamClosed as closed:
            raise _Interrupted from closed


def _answered(result: Result) -> _Said:
    if result.state == "DONE":
        return _Said(_State.RUNNING, result.generation)
    if result.state == "ROLLED_BACK":
        error: UpgradeError = UpgradeRolledBack(
            "upgrading the agent", result.found, data=_GOES_ON, remedy=result.remedy
        )
        return _Said(_State.ROLLED_BACK, result.generation, 0, error)
    return _Said(_State.REFUSED, result.generation, 0, _refused(result.found, result.remedy))


def _refused(found: str, remedy: str) -> UpgradeRefused:
    return UpgradeRefused("upgrading the agent", found, data=_GOES_ON, remedy=remedy)


def _delayed(found: str, remedy: str) -> UpgradeDelayed:
    return UpgradeDelayed("fetching the agent's package", found, data=_GOES_ON, remedy=remedy)


def _disk(found: OSError, places: UpgradePlaces) -> UpgradeRefused:
    return _refused(
        f"{places.folder} can't be written: {found.strerror or type(found).__name__}",
        "Make room on that disk, or let the agent's user write there",
    )
