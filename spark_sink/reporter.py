"""Telling the control plane how the lake is: a thread of its own, which no batch waits for.

Comes in: the `SinkStatus`. Goes out: `menura.lake_report.LakeReport`s by PUT, when something changes (at most one each
`LEAST_SECONDS`) and each `REPORT_SECONDS` without a change. A report holds what changed since the last one that was
applied. Where one can't be delivered, or does not apply, the control plane's knowledge is unknown: the next one begins
anew with everything, in pages. A failure is logged once and tried again, more slowly up to `MAX_BACKOFF_SECONDS`;
ingestion goes on meanwhile. A reply may name stopped tables that somebody wants to be tried again now, and says which
joined views there shall be (`desired_views`).

Nothing is durable here: after a kill the next process begins anew, with another `run`. The control plane decides
nothing by this machine's clock.
"""

import json
import logging
import secrets
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from itertools import islice
from pathlib import Path
from typing import TypeVar
from urllib.parse import SplitResult, quote, urlsplit

from menura.lake_report import (
    MAX_REASON_CHARS,
    MAX_REPORT_BYTES,
    MAX_ROWS,
    MAX_VIEW_CUTS,
    LakePolicy,
    LakeProblem,
    LakeReply,
    LakeReport,
    LakeReportError,
    LakeSource,
    LakeStop,
    LakeSuspect,
    LakeTable,
    LakeVerdict,
    clipped,
    decode_reply,
    encode_report,
)
from menura.landed_digest import LandedFocus
from menura.landing import landing_name
from menura.token_file import read_token
from menura.views.definition import MOST_VIEWS, ViewState

from spark_sink.desired_views import DesiredViews, Want
from spark_sink.errors import SinkError, SinkSettingInvalid
from spark_sink.ingest.status import SinkStatus, Snapshot
from spark_sink.lake.records import StoppedTable
from spark_sink.landed.landing_log import LandingLog
from spark_sink.work import TableId

REPORT_SECONDS = 3.0
LEAST_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 15.0
REQUEST_SECONDS = 10.0
#: for the last report of a sink that ends
FAREWELL_SECONDS = 5.0
#: stopped tables of a page: their messages are long
PAGE_STOPS = 200
#: verdicts of a page, in characters of their texts
PAGE_VERDICT_CHARS = 400_000
#: of a report
MOST_SUSPECTS = 100
#: tables of which it is told; the control plane takes no more
MOST_POLICIES = 100_000

logger = logging.getLogger("menura.sink")

#: tables that are to be read again: after which verification, and what of them
Suspected = Callable[[], Mapping[TableId, tuple[str, LandedFocus]]]

T = TypeVar("T")


class NotDelivered(Exception):
    """The control plane was not reached, or refused the report; says which."""


@dataclass(frozen=True, slots=True)
class Page:
    sources: tuple[LakeSource, ...] = ()
    stopped: tuple[LakeStop, ...] = ()
    resumed: tuple[LakeTable, ...] = ()
    verdicts: tuple[LakeVerdict, ...] = ()
    policies: tuple[LakePolicy, ...] = ()
    #: all; None: as before
    views: tuple[ViewState, ...] | None = None


@dataclass(frozen=True, slots=True)
class LakeName:
    """Which lake it is, and which landing it follows."""

    name: str
    url: str
    landing: str


@dataclass(frozen=True, slots=True)
class Access:
    """How the sink comes to the control plane's API: both files are read for each report, so they may change."""

    #: with a token of the role sink; None: it is asked for none
    token: Path | None = None
    #: whose certificates are good; None: those that the system trusts
    ca: Path | None = None


class Reporter:
    """Raises `SinkSettingInvalid` for an address that is none."""

    def __init__(self, api: str, lake: LakeName, status: SinkStatus, access: Access = Access()) -> None:
        self._address = parse_api(api)
        self._access = access
        self._lake = lake
        self._status = status
        self._retry: Callable[[Sequence[TableId]], None] = lambda _tables: None
        self._suspected: Suspected = dict
        self._views: DesiredViews | None = None
        self._log = LandingLog(lake.landing)
        self._run = secrets.token_hex(16)
        self._number = 0
        #: what the control plane has, by its last reply; None: unknown
        self._told: Snapshot | None = None
        self._is_reached = True
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._report, name="reporter", daemon=True)

    def start(
        self, retry: Callable[[Sequence[TableId]], None], suspected: Suspected = dict, want: Want | None = None
    ) -> None:
        """`retry` is called with tables that shall be tried again now, from the reporter's thread; `suspected` tells
        which are to be read again, after which verification; `want` gets the views that there shall be, all of them.
        Once."""
        self._retry, self._suspected = retry, suspected
        if self._views is None and want is not None:
            self._views = DesiredViews(self._lake.url, want)
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """Tell how the lake is at the end, if that can be done soon."""
        self._stopping.set()
        self._status.wake()
        if self._thread.is_alive():
            self._thread.join(FAREWELL_SECONDS)

    def fail(self, error: SinkError) -> None:
        """Tell what ends the sink, instead of `stop`; also of one that has not started."""
        self.stop()
        if not self._thread.is_alive():
            self._try_to_tell(LakeProblem(error.code, clipped(str(error))))

    def _report(self) -> None:
        pause = REPORT_SECONDS
        if self._views is not None:
            self._views.begin()
        while True:
            seen, is_last = self._status.changes(), self._stopping.is_set()
            pause = REPORT_SECONDS if self._try_to_tell() else min(pause * 2, MAX_BACKOFF_SECONDS)
            if is_last:
                return
            self._stopping.wait(LEAST_SECONDS)
            if self._told is not None:
                self._status.wait_for_change(seen, pause - LEAST_SECONDS)
            else:
                self._stopping.wait(pause - LEAST_SECONDS)

    def _try_to_tell(self, problem: LakeProblem | None = None) -> bool:
        try:
            applied = self._tell(problem) or self._tell(problem)  # the second one begins anew
        except NotDelivered as failure:
            self._told = None
            if self._is_reached:
                logger.warning(
                    "the control plane does not hear of the lake, trying on; ingestion goes on api=%s error=%s",
                    self._address.geturl(),
                    failure,
                )
            self._is_reached = False
            return False
        if not self._is_reached:
            logger.info("the control plane hears of the lake again api=%s", self._address.geturl())
        self._is_reached = True
        return applied

    def _tell(self, problem: LakeProblem | None) -> bool:
        """Send what is new; whether it was applied."""
        now = self._status.now()
        base = self._number if self._told is not None else 0
        found = list(pages(self._told or Snapshot(), now))
        is_known = problem is None or self._told is not None
        reply = LakeReply(resend=True)
        for place, page in enumerate(found, 1):
            self._number += 1
            report = LakeReport(
                lake=self._lake.name,
                url=self._lake.url,
                landing=landing_name(self._lake.landing),
                run=self._run,
                number=self._number,
                base=base,
                more=place < len(found) or not is_known,
                entry=now.entry,
                durable_entry=now.durable_entry,
                waiting_since_us=self._waiting_since_us(now.entry),
                sources=page.sources,
                stopped=page.stopped,
                resumed=page.resumed,
                verdicts=page.verdicts,
                policies=page.policies,
                views=page.views,
                problem=problem or now.problem,
                suspected=_suspects(self._suspected()),
            )
            reply = self._send(report)
            if reply.resend:
                self._told = None
                return False
            base = self._number
        self._told = now
        if reply.retry:
            self._retry([TableId(each.tenant, each.source, each.database, each.table) for each in reply.retry])
        if self._views is not None:
            self._views.follow(reply.views, lambda: self._ask("GET", "/views", None))
        return True

    def _waiting_since_us(self, entry: int) -> int:
        try:
            return self._log.written_us(entry + 1) or 0
        except OSError:  # the batch that needs the landing says so
            return 0

    def _send(self, report: LakeReport) -> LakeReply:
        try:
            return decode_reply(self._ask("PUT", "", encode_report(report)))
        except LakeReportError as unreadable:
            raise NotDelivered(f"its answer can't be read: {unreadable}") from unreadable

    def _ask(self, method: str, below: str, body: bytes | None) -> bytes:
        """The answer's body. Raises `NotDelivered`."""
        try:
            headers = {"Content-Type": "application/json", **_authorization(self._access)}
            with closing(_connect(self._address, self._access)) as connection:
                path = f"{self._address.path.rstrip('/')}/api/v1/lakes/{quote(self._lake.name, safe='')}{below}"
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                document = response.read(MAX_REPORT_BYTES + 1)
        except (OSError, HTTPException) as failure:
            raise NotDelivered(type(failure).__name__) from failure
        if response.status != 200:
            raise NotDelivered(f"it answered {response.status}")
        return document


def parse_api(api: str) -> SplitResult:
    """Raises `SinkSettingInvalid`."""
    try:
        address = urlsplit(api)
        usable = address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise SinkSettingInvalid("reading the arguments", f"--api {api!r}", remedy="Give http://HOST:PORT")
    return address


def pages(told: Snapshot, now: Snapshot) -> Iterator[Page]:
    """What changed between two snapshots, at least one page; empty where nothing did."""
    sources = [source for name, source in now.sources.items() if told.sources.get(name) != source]
    stopped = [_stop(stop) for table, stop in now.stopped.items() if told.stopped.get(table) != stop]
    resumed = [_table(table) for table in told.stopped if table not in now.stopped]
    verdicts = [
        verdict
        for table, of_table in now.verdicts.items()
        if (former := told.verdicts.get(table, ())) != of_table
        for verdict in of_table
        if verdict not in former
    ]
    of_sources, of_stopped = _parts(sources, MAX_ROWS), _parts(stopped, PAGE_STOPS)
    of_resumed, of_verdicts = _parts(resumed, MAX_ROWS), _verdict_parts(verdicts)
    of_policies = _parts(_policies(told, now), MAX_ROWS)
    for place in range(max(1, len(of_sources), len(of_stopped), len(of_resumed), len(of_verdicts), len(of_policies))):
        yield Page(
            _at(of_sources, place),
            _at(of_stopped, place),
            _at(of_resumed, place),
            _at(of_verdicts, place),
            _at(of_policies, place),
        )
    if now.views != told.views:
        yield Page(views=tuple(map(_view, now.views[:MOST_VIEWS])))


def _policies(told: Snapshot, now: Snapshot) -> list[LakePolicy]:
    """What is said otherwise than before; '' of those of which nothing is said any more."""
    before, after = (dict(islice(each.policies.items(), MOST_POLICIES)) for each in (told, now))
    return [
        LakePolicy(table.tenant, table.source, table.database, table.table, clipped(words, MAX_REASON_CHARS))
        for table in {**before, **after}
        if before.get(table) != (words := after.get(table, ""))
    ]


def _view(view: ViewState) -> ViewState:
    """As a report takes it."""
    return replace(view, message=clipped(view.message, MAX_REASON_CHARS), cuts=view.cuts[:MAX_VIEW_CUTS])


def _parts(rows: Sequence[T], size: int) -> list[tuple[T, ...]]:
    return [tuple(rows[begin : begin + size]) for begin in range(0, len(rows), size)]


def _verdict_parts(verdicts: Sequence[LakeVerdict]) -> list[tuple[LakeVerdict, ...]]:
    """Most are short; those with many leaves and a long position are not."""
    parts: list[list[LakeVerdict]] = []
    chars = 0
    for verdict in verdicts:
        weight = (
            len(verdict.reason)
            + len(verdict.position)
            + sum(len(leaf.lower + leaf.upper + leaf.key + leaf.columns) for leaf in verdict.leaves)
            + (len(json.dumps(asdict(verdict.unproven))) if verdict.unproven is not None else 0)
        )
        if not parts or chars + weight > PAGE_VERDICT_CHARS or len(parts[-1]) == MAX_ROWS:
            parts.append([])
            chars = 0
        parts[-1].append(verdict)
        chars += weight
    return [tuple(part) for part in parts]


def _at(parts: Sequence[tuple[T, ...]], place: int) -> tuple[T, ...]:
    return parts[place] if place < len(parts) else ()


def _table(table: TableId) -> LakeTable:
    return LakeTable(table.tenant, table.source, table.database, table.table)


def _suspects(found: Mapping[TableId, tuple[str, LandedFocus]]) -> tuple[LakeSuspect, ...]:
    """The first of them: the others come when these have been read again."""
    return tuple(
        LakeSuspect(table.tenant, table.source, table.database, table.table, verification, focus)
        for table, (verification, focus) in list(found.items())[:MOST_SUSPECTS]
    )


def _stop(stop: StoppedTable) -> LakeStop:
    table = stop.table
    return LakeStop(
        table.tenant,
        table.source,
        table.database,
        table.table,
        entry=stop.entry,
        cut=stop.cut,
        code=stop.code,
        message=clipped(stop.message),
        terminal=stop.terminal,
        at_us=stop.at_us,
        last_commit_timestamp_us=stop.last_commit_timestamp_us,
        reread=stop.is_healed_by_dump,
        gsn=stop.begins_at_gsn if stop.is_healed_by_dump else 0,
    )


def _connect(address: SplitResult, access: Access) -> HTTPConnection:
    """Straight to the address: no proxy stands between a sink and its control plane."""
    assert address.hostname is not None
    if address.scheme == "http":
        return HTTPConnection(address.hostname, address.port, timeout=REQUEST_SECONDS)
    trusted = ssl.create_default_context(cafile=access.ca)
    return HTTPSConnection(address.hostname, address.port, timeout=REQUEST_SECONDS, context=trusted)


def _authorization(access: Access) -> dict[str, str]:
    """Raises OSError, and `NotDelivered` for a file without a token, which is not shown."""
    if access.token is None:
        return {}
    try:
        return {"Authorization": f"Bearer {read_token(access.token)}"}
    except ValueError as missing:
        raise NotDelivered(f"{access.token} {missing}") from missing
