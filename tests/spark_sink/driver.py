"""What the sink's driver does with a landing's log, without Spark: for tests of verifications."""

from pathlib import Path
from typing import Any

from menura.lake_report import LakeVerdict

from spark_sink.ingest.cut_log_source import entry_rows
from spark_sink.ingest.verifications import Verifications
from spark_sink.lake.schema_policy import EVOLVE_ALL
from spark_sink.lake.table_options import PLAIN_TABLES
from spark_sink.lake.tail import AT_ONCE
from spark_sink.landed.landing_log import LandingLog
from spark_sink.work import EventSeen, TableId, split_rows
from tests.spark_sink.landing import Writer, apply_entries


class Driver:
    """What the sink does with entries of its log, one batch after the other."""

    def __init__(self, writer: Writer, lake: Path) -> None:
        self.writer, self.lake = writer, lake
        self.entry = 0
        #: how long changes wait in the changelog before they are merged
        self.waiting = AT_ONCE
        self.schema_changes = EVOLVE_ALL
        self.table_options = PLAIN_TABLES
        #: what the control plane would be told
        self.told: dict[TableId, tuple[LakeVerdict, ...]] = {}
        self.verifications = Verifications(str(lake), self.told.update)
        self.verifications.start()

    def follow(self) -> None:
        """Bring the lake to the log's end, as one batch."""
        log = LandingLog(str(self.writer.folder))
        first, last = self.entry + 1, log.last_entry(self.entry)
        outcomes = apply_entries(
            self.writer.folder,
            self.lake,
            first=first,
            last=last,
            waiting=self.waiting,
            schema_changes=self.schema_changes,
            table_options=self.table_options,
        )
        assert all(outcome.result in ("applied", "skipped") for outcome in outcomes), outcomes
        rows = [each for number in range(first, last + 1) for each in entry_rows(log.read_entry(number))]
        events = [known for known in split_rows(rows)[0] if isinstance(known, EventSeen)]
        self.entry = last
        self.verifications.note(outcomes, events)

    def verdict(self, verification: str = "") -> dict[str, Any]:
        """Of the table, once all that is due is compared; the last one, or this one's."""
        self.verifications.stop(600, finish=True)
        rows = [row for row in self.verifications.records.rows() if row["chunk"] is None]
        self.verifications = Verifications(str(self.lake))
        self.verifications.start()
        return [row for row in rows if verification in ("", row["verification"])][-1]
