"""The contract between sinks and the control plane: what goes in comes out, and nothing hostile does."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from menura.lake_report import (
    MAX_INT64,
    MAX_MESSAGE_CHARS,
    MAX_REPORT_BYTES,
    MAX_ROWS,
    LakeReply,
    LakeReportError,
    LakeSuspect,
    clipped,
    decode_reply,
    decode_report,
    encode_reply,
    encode_report,
)
from menura.landed_digest import LandedFocus, LandedRange

from tests.controlplane_api.lake_facts import PROBLEM, Sink, lake_source, stop, table_of
from tests.controlplane_api.verdict_facts import verdict

FOCUS = LandedFocus((LandedRange('["1","#"]', "", (1,), ()),), 4, (-(1 << 63), (1 << 63) - 1), ("integer",))
WHOLE = Sink().report(
    sources=(lake_source(7),), stopped=(stop("orders"), stop("☃ `x")), resumed=(table_of("items"),), problem=PROBLEM,
    suspected=(LakeSuspect("acme", "shop", "shop", "orders", "3f1c", FOCUS),),
    verdicts=(verdict(7, since_gsn=41), verdict(8, "unknown", unproven=FOCUS)),
)  # fmt: skip
MISSING = object()


def test_report_and_reply_when_encoded_then_decode_to_themselves():
    assert decode_report(encode_report(WHOLE)) == WHOLE
    reply = LakeReply(resend=True, retry=(table_of("orders"),))
    assert decode_reply(encode_reply(reply)) == reply


def test_verdict_when_an_older_sink_tells_it_then_nobody_knows_since_when_it_holds_or_what_is_unproven():
    facts = json.loads(encode_report(WHOLE))
    for told in facts["verdicts"]:
        del told["since_gsn"], told["unproven"]
    assert decode_report(json.dumps(facts).encode()).verdicts == (verdict(7), verdict(8, "unknown"))


def test_report_when_it_has_fields_of_a_later_version_then_they_are_ignored():
    facts = json.loads(encode_report(WHOLE))
    facts["colour"] = facts["sources"][0]["colour"] = "red"
    assert decode_report(json.dumps(facts).encode()) == WHOLE


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("format",), 2),
        (("format",), True),
        (("lake",), "../etc"),
        (("lake",), MISSING),
        (("run",), "x"),
        (("url",), "x" * 3_000),
        (("landing",), ""),
        (("number",), 0),  # base is not below it
        (("number",), "1"),
        (("base",), -1),
        (("more",), 1),
        (("entry",), MAX_INT64 + 1),
        (("entry",), 1.5),
        (("waiting_since_us",), None),
        (("sources",), None),
        (("sources",), {}),
        (("sources",), [[]]),
        (("sources", 0, "tenant"), "ACME"),
        (("sources", 0, "cut"), -1),
        (("stopped",), [{}] * (MAX_ROWS + 1)),
        (("stopped", 0, "code"), "no code"),
        (("stopped", 0, "message"), "x" * (MAX_MESSAGE_CHARS + 1)),
        (("stopped", 0, "message"), "a\0b"),
        (("stopped", 0, "table"), ""),
        (("stopped", 0, "table"), "x" * 257),
        (("stopped", 0, "database"), "\ud800"),
        (("stopped", 0, "terminal"), "yes"),
        (("resumed", 0, "table"), MISSING),
        (("suspected", 0, "verification"), ""),
        (("suspected", 0, "focus"), None),
        (("suspected", 0, "focus", "bits"), 65),
        (("suspected", 0, "focus", "since_gsn"), -1),
        (("suspected", 0, "focus", "since_gsn"), 1 << 63),
        (("verdicts", 0, "since_gsn"), -1),
        (("verdicts", 0, "since_gsn"), None),
        (("verdicts", 1, "unproven"), []),
        (("verdicts", 1, "unproven", "bits"), 65),
        (("suspected", 0, "focus", "buckets"), [0] * 17),
        (("suspected", 0, "focus", "buckets"), [1 << 63]),
        (("suspected", 0, "focus", "buckets"), ["1"]),
        (("suspected", 0, "focus", "ranges", 0, "above"), None),
        (("suspected", 0, "focus", "ranges", 0, "lower"), "a\0"),
        (("problem",), "it broke"),
        (("problem",), {"code": "X"}),
    ],
    ids=lambda each: json.dumps(each, default=lambda _: "missing")[:40],
)
def test_report_when_a_field_is_not_of_its_form_then_refused_without_its_content(path: tuple[Any, ...], value: object):
    facts = json.loads(encode_report(WHOLE))
    place = facts
    for step in path[:-1]:
        place = place[step]
    if value is MISSING:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    with pytest.raises(LakeReportError) as refused:
        decode_report(json.dumps(facts).encode())
    assert "The file is gone" not in str(refused.value)


@pytest.mark.parametrize(
    "document", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 200_000, b" " * (MAX_REPORT_BYTES + 1), b'{"format":1}']
)
def test_report_when_it_is_no_document_of_the_form_then_refused(document: bytes):
    with pytest.raises(LakeReportError):
        decode_report(document)


@given(st.binary(max_size=300))
def test_report_when_bytes_are_any_then_refused_or_read(document: bytes):
    with pytest.raises(LakeReportError):
        decode_report(document)


@given(st.text(max_size=5_000))
def test_message_when_any_then_a_report_takes_it(message: str):
    shown = clipped(message) or "-"
    if not any(0xD800 <= ord(sign) < 0xE000 for sign in shown):
        assert decode_report(encode_report(Sink().report(stopped=(stop("t", at_us=1),)))).stopped[0].message
        assert len(shown) <= MAX_MESSAGE_CHARS
        assert "\0" not in shown
