"""What a sink tells the control plane of its lake, and what it hears back: JSON documents of bounded size.

A sink sends `LakeReport`s one after the other to PUT /api/v1/lakes/LAKE; each answer is a `LakeReply`. The control
plane keeps what it was told; a report holds only what changed since. Reports of one process (`run`) are numbered: one
with `base` N applies where number N was the last one that was applied, and any other is answered with `resend`. A
report with base 0 applies always: it begins the whole state anew, in as many further reports as it takes, all but the
last with `more`. So a database that was lost, put back or behind is noticed with the next report. A report that
changes nothing says that the sink lives.

A report, format 1 (times in microseconds since the epoch, UTC)::

    {"format": 1, "lake": "host-1f2e3d4c", "url": "/data/lake", "landing": "/data/landing", "run": "5c0f...",
     "number": 12, "base": 11, "more": false, "entry": 4711, "durable_entry": 4711,
     "waiting_since_us": 0,
     "sources": [{"tenant": "acme", "source": "shop", "entry": 4710, "cut": 812, "committed_at_us": 1700000000000000,
                  "last_commit_timestamp_us": 1699999999900000}],
     "stopped": [{"tenant": "acme", "source": "shop", "database": "shop", "table": "orders", "entry": 4702, "cut": 808,
                  "code": "DATA_FILE_UNREADABLE", "message": "...", "terminal": true, "at_us": 1699999999000000,
                  "last_commit_timestamp_us": 1699999998000000, "reread": false, "gsn": 0}],
     "resumed": [{"tenant": "acme", "source": "shop", "database": "shop", "table": "items"}],
     "suspected": [{"tenant": "acme", "source": "shop", "database": "shop", "table": "items", "verification": "3f1c...",
                    "focus": {"ranges": [], "bits": 3, "buckets": [5]}}],
     "verdicts": [{"tenant": "acme", "source": "shop", "database": "shop", "table": "items", "verification": "3f1c...",
                   "verdict": "differs", "reason": "rows differ", "position": "3E11FA47-...:1-77", "cut": 811,
                   "source_rows": 40000, "lake_rows": 39999, "leaves_equal": 2, "leaves_differ": 1, "leaves_unknown": 0,
                   "leaves": [{"lower": "16384", "upper": "32768", "source_rows": 16384, "lake_rows": 16383}],
                   "read_at_us": 1699999999000000, "at_us": 1699999999500000}],
     "policies": [{"tenant": "acme", "source": "shop", "database": "shop", "table": "items", "said": "lenient: ..."}],
     "views": [{"tenant": "acme", "name": "paid", "digest": "9f86d081884c7d65", "state": "following", "code": "",
                "message": "", "cuts": [{"source": "shop", "cut": 812, "committed_us": 1699999999900000}],
                "version": 17, "rows": 4000, "changes": 12000, "applied_at_us": 1700000000100000}],
     "problem": null}

`views` are all joined views that the sink has, where they are not what was told before; null: they are.

`policies` says of tables what their policies for schema changes are, where these are not `evolve`, and in what the
tables are not their sources'; with an empty text that there is nothing to say any more.

A verdict is told once it is there, and with the whole state: of a table the newest one, and of those that are equal and
of those that differ the newest. Who has a verdict already leaves it as it is. One that is equal may have `since_gsn`:
what the log lacks below this row number is in the lake all the same, and what it lacks above was told; 0 or absent:
that is not known. One that is not may have `unproven`, a focus: outside of its ranges all was equal when it was read.

`suspected` are all tables of which a verification has found leaves that differ: what is to be read again of them. They
stand in each report until another verification of the table begins.

A reply: ``{"format": 1, "resend": false, "retry": [{"tenant": ..., "source": ..., "database": ..., "table": ...}],
"views": "5d4140..."}``. `views` is the digest of all joined views that lakes shall have (`views_digest`): a sink that
has others asks for GET /api/v1/lakes/LAKE/views, a document of `menura.views.definition`. Empty: nothing is said of
views.

Whoever reads refuses a document above `MAX_REPORT_BYTES`, a `format` above its own, more than `MAX_ROWS` of a kind,
and every text or number beyond its limit: `LakeReportError`. Unknown fields are ignored: a later version may add some.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from menura.bounds import MAX_INT64, MAX_NAME_CHARS, clean_text
from menura.landed_digest import LandedFocus
from menura.naming import is_identity
from menura.told_focus import FocusInvalid, is_encodable, read_focus
from menura.views.definition import ViewCut, ViewState, is_view_name

FORMAT = 1
MAX_REPORT_BYTES = 8 << 20
#: sources, stopped or resumed tables of one report, and tables of a reply
MAX_ROWS = 1_000
MAX_URL_CHARS = 2_048
MAX_MESSAGE_CHARS = 4_000
#: of a verdict: its reason, its position, a bound of a leaf, the leaves that are named
MAX_REASON_CHARS = 1_000
MAX_POSITION_CHARS = 2_048
MAX_BOUND_CHARS = 128
MAX_LEAVES = 20
#: sources of one joined view
MAX_VIEW_CUTS = 64

_CODE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_RUN = re.compile(r"[0-9a-f]{32}")
_VERDICT = re.compile("equal|differs|void|unknown")
_VIEW_STATE = re.compile("waiting|building|following|stopped")
_DIGEST = re.compile(r"[0-9a-f]{16,64}")

T = TypeVar("T")


class LakeReportError(ValueError):
    """A document that can't be read; says which and why, and nothing of its content."""


@dataclass(frozen=True, slots=True, order=True)
class LakeTable:
    tenant: str
    source: str
    database: str
    table: str


@dataclass(frozen=True, slots=True)
class LakeSource:
    """How far a source is in the lake: all of `cut` and those before it, but for stopped tables."""

    tenant: str
    source: str
    #: of the log, in which the cut stands
    entry: int
    cut: int
    #: when the cut landed
    committed_at_us: int
    #: of the newest transaction in the lake; 0: not known
    last_commit_timestamp_us: int


@dataclass(frozen=True, slots=True)
class LakeStop:
    """A table that the sink has stopped: nothing of `cut` or a later one is in the lake."""

    tenant: str
    source: str
    database: str
    table: str
    entry: int
    cut: int
    code: str
    message: str
    #: False: the sink tries it again by itself
    terminal: bool
    at_us: int
    #: of the newest transaction of its source that the lake had when the table stopped; 0: not known
    last_commit_timestamp_us: int
    #: the table goes on with a dump, which the sink asks for
    reread: bool = False
    #: with `reread`: the dump has to begin above this number; 0: not known
    gsn: int = 0

    @property
    def of(self) -> LakeTable:
        return LakeTable(self.tenant, self.source, self.database, self.table)


#: code of a stop that is none: the sink gives the table what it has missed, in parts, while others go on
TABLE_BEHIND = "TABLE_BEHIND"


@dataclass(frozen=True, slots=True)
class LakePolicy:
    """A table's policy for schema changes, and in what the table is not its source's; '': nothing is said any more."""

    tenant: str
    source: str
    database: str
    table: str
    said: str

    @property
    def of(self) -> LakeTable:
        return LakeTable(self.tenant, self.source, self.database, self.table)


@dataclass(frozen=True, slots=True)
class LakeSuspect:
    """A table with leaves that differ, by a verification; see `menura.landed_digest.LandedFocus`."""

    tenant: str
    source: str
    database: str
    table: str
    verification: str
    focus: LandedFocus


@dataclass(frozen=True, slots=True)
class LakeLeaf:
    """Rows that differ: of keys above `lower` up to and with `upper`; empty: without bound."""

    lower: str
    upper: str
    source_rows: int
    lake_rows: int
    #: of one row, as a JSON array of texts; or which part of the rows it is, where their keys have no order
    key: str = ""
    #: of that row, which differ, where that is known
    columns: str = ""


@dataclass(frozen=True, slots=True)
class LakeVerdict:
    """What a verification has found of a table."""

    tenant: str
    source: str
    database: str
    table: str
    verification: str
    #: equal, differs, void (given up) or unknown
    verdict: str
    #: empty: it is equal
    reason: str
    #: of the source, behind the last row that was read; empty: the verification did not end
    position: str
    #: of the lake, at whose end its last rows were compared
    cut: int
    source_rows: int
    lake_rows: int
    leaves_equal: int
    leaves_differ: int
    leaves_unknown: int
    #: the first `MAX_LEAVES` of those that differ
    leaves: tuple[LakeLeaf, ...]
    #: when the source's last rows were read; 0: none were
    read_at_us: int
    at_us: int
    #: of one that is equal: the lake has what the log lacks below this row number; 0: that is not known
    since_gsn: int = 0
    #: of one that is not: outside of its ranges all is equal; None: which these are is not known
    unproven: LandedFocus | None = None

    @property
    def of(self) -> LakeTable:
        return LakeTable(self.tenant, self.source, self.database, self.table)


@dataclass(frozen=True, slots=True)
class LakeProblem:
    """What ended the sink, or what it waits for."""

    code: str
    message: str
    #: False: the sink goes on by itself
    terminal: bool = True


@dataclass(frozen=True, slots=True)
class LakeReport:
    lake: str
    url: str
    #: see `menura.landing.landing_name`
    landing: str
    run: str
    number: int
    base: int
    more: bool
    #: of the log: all up to it is in the lake; 0 for none, or not known
    entry: int
    #: when the first entry landed that is not in the lake; 0: there is none
    waiting_since_us: int
    sources: tuple[LakeSource, ...] = ()
    stopped: tuple[LakeStop, ...] = ()
    resumed: tuple[LakeTable, ...] = ()
    problem: LakeProblem | None = None
    #: of the log: the sink never reads an entry up to it again, but for stopped tables; 0 for none, or not known
    durable_entry: int = 0
    suspected: tuple[LakeSuspect, ...] = ()
    verdicts: tuple[LakeVerdict, ...] = ()
    policies: tuple[LakePolicy, ...] = ()
    #: all; None: as before
    views: tuple[ViewState, ...] | None = None


@dataclass(frozen=True, slots=True)
class LakeReply:
    #: the report did not apply: the next one must have base 0
    resend: bool
    #: stopped tables to be tried again now
    retry: tuple[LakeTable, ...] = ()
    #: digest of the views that lakes shall have; empty: nothing is said of them
    views: str = ""


def encode_report(report: LakeReport) -> bytes:
    return _encode(report)


def encode_reply(reply: LakeReply) -> bytes:
    return _encode(reply)


def decode_report(document: bytes) -> LakeReport:
    """Read a report back; raises `LakeReportError`."""
    facts = _facts(document)
    report = LakeReport(
        lake=_identity(facts, "lake"),
        url=_text(facts, "url", MAX_URL_CHARS),
        landing=_text(facts, "landing", MAX_URL_CHARS),
        run=_matching(facts, "run", _RUN),
        number=_integer(facts, "number"),
        base=_integer(facts, "base"),
        more=_flag(facts, "more"),
        entry=_integer(facts, "entry"),
        waiting_since_us=_integer(facts, "waiting_since_us"),
        sources=_rows(facts, "sources", _source),
        stopped=_rows(facts, "stopped", _stop),
        resumed=_rows(facts, "resumed", _table),
        problem=None if facts.get("problem") is None else _problem(_object(facts["problem"], "problem")),
        durable_entry=_integer(facts, "durable_entry") if "durable_entry" in facts else 0,
        verdicts=_rows(facts, "verdicts", _verdict) if "verdicts" in facts else (),
        suspected=_rows(facts, "suspected", _suspect) if "suspected" in facts else (),
        policies=_rows(facts, "policies", _policy) if "policies" in facts else (),
        views=None if facts.get("views") is None else _rows(facts, "views", _view),
    )
    if not report.base < report.number:
        raise LakeReportError("base is not below number")
    return report


def decode_reply(document: bytes) -> LakeReply:
    """Read a reply back; raises `LakeReportError`."""
    facts = _facts(document)
    views = _matching(facts, "views", _DIGEST) if facts.get("views") else ""
    return LakeReply(_flag(facts, "resend"), _rows(facts, "retry", _table), views)


def views_digest(views: Iterable[tuple[str, str, str]]) -> str:
    """Of joined views, each as its tenant, its name and its own digest; their order does not count.

    >>> views_digest([("b", "x", "1"), ("a", "y", "2")]) == views_digest([("a", "y", "2"), ("b", "x", "1")])
    True
    """
    return hashlib.sha256(json.dumps(sorted(views)).encode()).hexdigest()[:16]


def clipped(message: str, most_chars: int = MAX_MESSAGE_CHARS) -> str:
    """A message as a report takes it.

    >>> len(clipped("x" * 5000)), clipped("short"), clipped("longer", 4)
    (4000, 'short', 'lon…')
    """
    clean = clean_text(message, most_chars + 1)
    return clean if len(clean) <= most_chars else f"{clean[: most_chars - 1]}…"


def _encode(value: LakeReport | LakeReply) -> bytes:
    return json.dumps({"format": FORMAT, **asdict(value)}, separators=(",", ":")).encode()


def _facts(document: bytes) -> Mapping[str, Any]:
    if len(document) > MAX_REPORT_BYTES:
        raise LakeReportError(f"it has more than {MAX_REPORT_BYTES} bytes")
    try:
        facts = _object(json.loads(document), "it")
    except (ValueError, RecursionError) as broken:
        raise LakeReportError("it is no JSON document of the form") from broken
    if _integer(facts, "format") != FORMAT:
        raise LakeReportError(f"its format is another than {FORMAT}: use the same version on both sides")
    return facts


def _source(facts: Mapping[str, Any]) -> LakeSource:
    return LakeSource(
        tenant=_identity(facts, "tenant"),
        source=_identity(facts, "source"),
        entry=_integer(facts, "entry"),
        cut=_integer(facts, "cut"),
        committed_at_us=_integer(facts, "committed_at_us"),
        last_commit_timestamp_us=_integer(facts, "last_commit_timestamp_us"),
    )


def _table(facts: Mapping[str, Any]) -> LakeTable:
    return LakeTable(
        tenant=_identity(facts, "tenant"),
        source=_identity(facts, "source"),
        database=_text(facts, "database", MAX_NAME_CHARS),
        table=_text(facts, "table", MAX_NAME_CHARS),
    )


def _stop(facts: Mapping[str, Any]) -> LakeStop:
    table = _table(facts)
    return LakeStop(
        table.tenant,
        table.source,
        table.database,
        table.table,
        entry=_integer(facts, "entry"),
        cut=_integer(facts, "cut"),
        code=_matching(facts, "code", _CODE),
        message=_text(facts, "message", MAX_MESSAGE_CHARS),
        terminal=_flag(facts, "terminal"),
        at_us=_integer(facts, "at_us"),
        last_commit_timestamp_us=_integer(facts, "last_commit_timestamp_us"),
        reread=_flag(facts, "reread"),
        gsn=_integer(facts, "gsn"),
    )


def _policy(facts: Mapping[str, Any]) -> LakePolicy:
    table = _table(facts)
    said = _optional(facts, "said", MAX_REASON_CHARS)
    return LakePolicy(table.tenant, table.source, table.database, table.table, said)


def _view(facts: Mapping[str, Any]) -> ViewState:
    name, cuts = facts.get("name"), _rows(facts, "cuts", _view_cut)
    if not isinstance(name, str) or not is_view_name(name):
        raise LakeReportError("name is no name of a view")
    if len(cuts) > MAX_VIEW_CUTS:
        raise LakeReportError(f"cuts is no list of at most {MAX_VIEW_CUTS}")
    return ViewState(
        tenant=_identity(facts, "tenant"),
        name=name,
        digest=_matching(facts, "digest", _DIGEST),
        state=_matching(facts, "state", _VIEW_STATE),
        code="" if facts.get("code") == "" else _matching(facts, "code", _CODE),
        message=_optional(facts, "message", MAX_REASON_CHARS),
        cuts=cuts,
        version=_known_integer(facts, "version"),
        rows=_known_integer(facts, "rows"),
        changes=_known_integer(facts, "changes"),
        applied_at_us=_integer(facts, "applied_at_us"),
    )


def _view_cut(facts: Mapping[str, Any]) -> ViewCut:
    return ViewCut(_identity(facts, "source"), _integer(facts, "cut"), _integer(facts, "committed_us"))


def _suspect(facts: Mapping[str, Any]) -> LakeSuspect:
    table = _table(facts)
    verification = _text(facts, "verification", MAX_NAME_CHARS)
    return LakeSuspect(table.tenant, table.source, table.database, table.table, verification, _focus(facts, "focus"))


def _focus(facts: Mapping[str, Any], name: str) -> LandedFocus:
    try:
        return read_focus(_object(facts.get(name), name), name)
    except FocusInvalid as invalid:
        raise LakeReportError(str(invalid)) from invalid


def _verdict(facts: Mapping[str, Any]) -> LakeVerdict:
    table = _table(facts)
    leaves = _rows(facts, "leaves", _leaf)
    if len(leaves) > MAX_LEAVES:
        raise LakeReportError(f"leaves is no list of at most {MAX_LEAVES}")
    return LakeVerdict(
        table.tenant,
        table.source,
        table.database,
        table.table,
        verification=_text(facts, "verification", MAX_NAME_CHARS),
        verdict=_matching(facts, "verdict", _VERDICT),
        reason=_optional(facts, "reason", MAX_REASON_CHARS),
        position=_optional(facts, "position", MAX_POSITION_CHARS),
        cut=_integer(facts, "cut"),
        source_rows=_integer(facts, "source_rows"),
        lake_rows=_integer(facts, "lake_rows"),
        leaves_equal=_integer(facts, "leaves_equal"),
        leaves_differ=_integer(facts, "leaves_differ"),
        leaves_unknown=_integer(facts, "leaves_unknown"),
        leaves=leaves,
        read_at_us=_integer(facts, "read_at_us"),
        at_us=_integer(facts, "at_us"),
        since_gsn=_integer(facts, "since_gsn") if "since_gsn" in facts else 0,
        unproven=None if facts.get("unproven") is None else _focus(facts, "unproven"),
    )


def _leaf(facts: Mapping[str, Any]) -> LakeLeaf:
    return LakeLeaf(
        lower=_optional(facts, "lower", MAX_BOUND_CHARS),
        upper=_optional(facts, "upper", MAX_BOUND_CHARS),
        source_rows=_integer(facts, "source_rows"),
        lake_rows=_integer(facts, "lake_rows"),
        key=_optional({"key": "", **facts}, "key", MAX_BOUND_CHARS),
        columns=_optional({"columns": "", **facts}, "columns", MAX_BOUND_CHARS),
    )


def _problem(facts: Mapping[str, Any]) -> LakeProblem:
    code, message = _matching(facts, "code", _CODE), _text(facts, "message", MAX_MESSAGE_CHARS)
    return LakeProblem(code, message, _flag({"terminal": True, **facts}, "terminal"))


def _rows(facts: Mapping[str, Any], name: str, read: Callable[[Mapping[str, Any]], T]) -> tuple[T, ...]:
    rows = facts.get(name)
    if not isinstance(rows, list) or len(rows) > MAX_ROWS:
        raise LakeReportError(f"{name} is no list of at most {MAX_ROWS}")
    return tuple(read(_object(row, name)) for row in rows)


def _object(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise LakeReportError(f"{name} is no object")
    return value


def _text(facts: Mapping[str, Any], name: str, most_chars: int) -> str:
    value = facts.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= most_chars or "\x00" in value or not is_encodable(value):
        raise LakeReportError(f"{name} is no text of 1 to {most_chars} characters")
    return value


def _optional(facts: Mapping[str, Any], name: str, most_chars: int) -> str:
    return "" if facts.get(name) == "" else _text(facts, name, most_chars)


def _matching(facts: Mapping[str, Any], name: str, form: re.Pattern[str]) -> str:
    value = facts.get(name)
    if not isinstance(value, str) or form.fullmatch(value) is None:
        raise LakeReportError(f"{name} is not of its form")
    return value


def _identity(facts: Mapping[str, Any], name: str) -> str:
    value = facts.get(name)
    if not isinstance(value, str) or not is_identity(value):
        raise LakeReportError(f"{name} is no name of 1 to 63 of a-z, 0-9, '-' and '_'")
    return value


def _integer(facts: Mapping[str, Any], name: str) -> int:
    value = facts.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_INT64:
        raise LakeReportError(f"{name} is no integer from 0 to {MAX_INT64}")
    return value


def _known_integer(facts: Mapping[str, Any], name: str) -> int:
    """-1: not known."""
    return -1 if facts.get(name) == -1 and not isinstance(facts[name], bool) else _integer(facts, name)


def _flag(facts: Mapping[str, Any], name: str) -> bool:
    value = facts.get(name)
    if not isinstance(value, bool):
        raise LakeReportError(f"{name} is neither true nor false")
    return value
