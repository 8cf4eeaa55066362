"""A sink as the control plane hears it, for tests."""

from dataclasses import dataclass, field
from typing import Any

import httpx
from menura.lake_report import (
    LakeProblem,
    LakeReply,
    LakeReport,
    LakeSource,
    LakeStop,
    LakeTable,
    decode_reply,
    encode_report,
)

from controlplane_api import lakes
from controlplane_api.database import Database
from tests.controlplane_api.facts import LANDING, T0, fresh_us

RUN = "0123456789abcdef" * 2


def stop(table: str, cut: int = 2, code: str = "DATA_FILE_UNREADABLE", **changed: Any) -> LakeStop:
    facts = {"entry": cut, "message": "The file is gone.", "terminal": True, "at_us": T0 + cut}
    return LakeStop(
        "acme", "shop", "shop", table, cut=cut, code=code, **{**facts, "last_commit_timestamp_us": T0, **changed}
    )


def lake_source(cut: int, entry: int | None = None, commit_us: int = T0) -> LakeSource:
    return LakeSource("acme", "shop", cut if entry is None else entry, cut, T0, commit_us)


def table_of(table: str) -> LakeTable:
    return LakeTable("acme", "shop", "shop", table)


@dataclass
class Sink:
    """Says what it is told to say, and numbers its reports as a sink does."""

    lake: str = "main"
    landing: str = LANDING
    run: str = RUN
    number: int = 0

    def report(self, base: int | None = None, **changed: Any) -> LakeReport:
        """The next report; its base is the one before."""
        base = self.number if base is None else base
        self.number += 1
        facts: dict[str, Any] = {"more": False, "entry": 0, "waiting_since_us": 0, **changed}
        return LakeReport(self.lake, "/data/lake", self.landing, self.run, self.number, base, **facts)

    def tell(self, database: Database, base: int | None = None, at_us: int | None = None, **changed: Any) -> LakeReply:
        with database.write() as connection:
            return lakes.take_report(connection, self.report(base, **changed), at_us or fresh_us())


@dataclass
class HttpSink(Sink):
    client: httpx.Client = field(default_factory=httpx.Client)

    def put(self, **changed: Any) -> LakeReply:
        answer = self.client.put(
            f"/api/v1/lakes/{self.lake}",
            content=encode_report(self.report(**changed)),
            headers={"content-type": "application/json"},
        )
        assert answer.status_code == 200, answer.text
        return decode_reply(answer.content)


PROBLEM = LakeProblem("LOG_ENTRY_UNREADABLE", "Entry 7 can't be read.")
