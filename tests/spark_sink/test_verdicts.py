"""Verdicts on their way to the control plane: which of a table are told, and on which page of a report."""

from dataclasses import replace

from menura.lake_report import MAX_REPORT_BYTES, LakeLeaf, decode_report, encode_report

from spark_sink.ingest.status import Snapshot
from spark_sink.ingest.verdicts import kept
from spark_sink.reporter import pages
from spark_sink.work import TableId
from tests.controlplane_api.lake_facts import Sink
from tests.controlplane_api.verdict_facts import verdict


def test_verdicts_when_there_are_several_then_the_newest_is_kept_and_of_both_kinds_the_newest() -> None:
    first, second, third, last = verdict(1), verdict(2, "differs"), verdict(3), verdict(4, "void")
    assert kept([first]) == (first,)
    assert kept([first, second, third]) == (second, third)
    assert kept([first, second, third, last]) == (second, third, last)
    assert kept([last, replace(last, verification="other")]) == (replace(last, verification="other"),)


def test_report_when_verdicts_are_long_then_it_takes_several_pages_and_none_is_told_twice() -> None:
    wide = LakeLeaf("\x01" * 128, "\x01" * 128, 1, 2, "\x01" * 128, "\x01" * 128)
    long = [
        verdict(number, "differs", reason="\x01" * 1_000, position="\x01" * 2_048, leaves=(wide,) * 20)
        for number in range(120)
    ]
    tables = [TableId("acme", "shop", "shop", str(number)) for number in range(120)]
    now = Snapshot(verdicts={table: (each,) for table, each in zip(tables, long, strict=True)})
    found = list(pages(Snapshot(), now))
    assert len(found) > 1 and [each for page in found for each in page.verdicts] == long
    for page in found:
        document = encode_report(Sink().report(0, verdicts=page.verdicts))
        assert len(document) < MAX_REPORT_BYTES and decode_report(document).verdicts == page.verdicts
    more = Snapshot(verdicts={**now.verdicts, tables[0]: (long[0], verdict(121))})
    assert [page.verdicts for page in pages(now, more)] == [(verdict(121),)]
