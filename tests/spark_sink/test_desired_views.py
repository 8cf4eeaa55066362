"""The views that a lake shall have, on a real API: whole, by a digest, whatever is lost in between."""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from menura.lake_report import views_digest
from menura.views.definition import MOST_VIEWS, ViewCut, ViewDefinition, ViewState, encode_views
from sqlalchemy import delete

from controlplane_api import joined_views
from controlplane_api.database import Database
from controlplane_api.models import JoinedView, LakeJoinedView
from controlplane_api.registry.sql_registry import SqlRegistry
from spark_sink.desired_views import PATH, DesiredViews
from spark_sink.ingest.status import SinkStatus
from spark_sink.reporter import LakeName, Reporter
from tests.controlplane_api import facts
from tests.controlplane_api.conftest import serving
from tests.servers import free_port
from tests.spark_sink.test_reporter import database, quick, status
from tests.stack import wait_for

__all__ = ["database", "quick", "status"]

SQL = "SELECT o.id, o.note FROM shop.shop.orders AS o"
Views = Sequence[ViewDefinition]


class Wanted:
    """What was handed on last."""

    def __init__(self) -> None:
        self.calls: list[Views] = []

    def __call__(self, views: Views) -> None:
        self.calls.append(views)

    @property
    def names(self) -> list[str]:
        return [view.name for view in self.calls[-1]] if self.calls else ["nothing was said"]

    def wait(self, *names: str) -> None:
        wait_for(f"views {names}", lambda: self.names == list(names), every=0.02)


@contextmanager
def reporting(url: str, status: SinkStatus, folder: Path) -> Iterator[Wanted]:
    wanted = Wanted()
    reporter = Reporter(url, LakeName("main", str(folder / "lake"), str(folder / "landing")), status)
    reporter.start(print, want=wanted)
    try:
        yield wanted
    finally:
        reporter.stop()


def write(database: Database, act: Callable[..., object], *arguments: object) -> None:
    with database.write() as connection:
        act(connection, "acme", *arguments)


def state(**changed: object) -> ViewState:
    facts_of = {"state": "following", "cuts": (ViewCut("shop", 7, 5),), "version": 1, "rows": 3, **changed}
    return ViewState("acme", "paid", ViewDefinition("acme", "paid", SQL).digest, **facts_of)


def test_views_when_they_are_made_changed_and_dropped_then_the_sink_has_all_of_them_and_the_api_their_states(
    database: Database, status: SinkStatus, tmp_path: Path
) -> None:
    facts.record_shop(SqlRegistry(database))
    with serving(database) as url, reporting(url, status, tmp_path) as wanted:
        wanted.wait()
        write(database, joined_views.create, "paid", SQL)
        wanted.wait("paid")
        write(database, joined_views.create, "all_paid", SQL)
        wanted.wait("all_paid", "paid")
        status.views_are([state()])

        def told() -> list[tuple[str, int]]:
            with database.read() as connection:
                return [(row.state, row.rows) for row in connection.execute(LakeJoinedView.__table__.select())]

        wait_for("the view's state", lambda: told() == [("following", 3)], every=0.02)
        many = tuple(ViewCut(f"s{number}", 1, 0) for number in range(100))
        status.views_are([state(state="stopped", code="VIEW_REFUSED", message="a type" * 999, rows=-1, cuts=many)])
        wait_for("its stop", lambda: told() == [("stopped", -1)], every=0.02)
        write(database, joined_views.change, "paid", f"{SQL} WHERE o.id > 1")
        wait_for("its text", lambda: wanted.calls[-1][1].sql.endswith("> 1"), every=0.02)
        with database.write() as connection:  # an older copy was put back
            connection.execute(delete(JoinedView).where(JoinedView.name == "paid"))
        wanted.wait("all_paid")
        status.views_are([])
        wait_for("no state", lambda: told() == [], every=0.02)
        write(database, joined_views.drop, "all_paid")
        wanted.wait()
    assert json.loads((tmp_path / "lake" / PATH).read_text())["views"] == []


def test_views_when_a_sink_begins_without_its_control_plane_then_it_goes_on_with_the_last_list(
    database: Database, status: SinkStatus, tmp_path: Path
) -> None:
    facts.record_shop(SqlRegistry(database))
    write(database, joined_views.create, "paid", SQL)
    with serving(database) as url, reporting(url, status, tmp_path) as wanted:
        wanted.wait("paid")
    with reporting(f"http://127.0.0.1:{free_port()}", status, tmp_path) as wanted:
        wanted.wait("paid")
    write(database, joined_views.drop, "paid")
    with serving(database) as url, reporting(url, status, tmp_path) as wanted:
        wanted.wait()


@pytest.mark.parametrize(
    "document",
    [
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"format": 2, "views": []}',
        b'{"format": 1, "views": [{"tenant": "acme", "name": "../x", "sql": "SELECT 1"}]}',
        encode_views([ViewDefinition("acme", f"v{n}", SQL) for n in range(MOST_VIEWS + 1)]).encode(),
        encode_views([ViewDefinition("acme", "other", SQL)]).encode(),
    ],
)
def test_list_when_it_can_not_be_read_or_is_not_the_one_of_the_digest_then_the_former_one_holds(
    tmp_path: Path, document: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "menura.sink")
    wanted = Wanted()
    views = DesiredViews(str(tmp_path), wanted)
    paid, digest = [ViewDefinition("acme", "paid", SQL)], views_digest([("acme", "paid", "another text")])
    good = views_digest([("acme", "paid", paid[0].digest)])
    views.follow(good, lambda: encode_views(paid).encode())
    for _ in range(3):
        views.follow(digest, lambda: document)
        views.follow("", lambda: document)
    assert (wanted.names, len(wanted.calls)) == (["paid"], 1)
    assert caplog.text.count("is not taken over") <= 1
    (tmp_path / PATH).write_bytes(document)
    anew = DesiredViews(str(tmp_path), wanted)
    anew.begin()
    anew.follow(good, lambda: encode_views(paid).encode())
    assert wanted.names == ["paid"]
