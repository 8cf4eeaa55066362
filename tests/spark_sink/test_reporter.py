"""What the sink tells the control plane and Prometheus, on a real API: level-triggered, bounded, never in the way."""

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import httpx
import pyarrow as pa
import pytest
from menura import metrics_port
from menura.instants import now_us
from menura.lake_report import MAX_MESSAGE_CHARS, MAX_ROWS, LakeProblem
from menura.landing import IDENTITY_PATH
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from sqlalchemy import delete

from controlplane_api.api.app import Access as ApiAccess
from controlplane_api.database import Database, open_database
from controlplane_api.identity.callers import Role
from controlplane_api.lakes import ask_retry
from controlplane_api.models import Lake, LakeSource, LakeStop
from spark_sink import reporter as reporter_module
from spark_sink.errors import LogEntryUnreadable, SinkSettingInvalid
from spark_sink.ingest.status import SinkStatus, Snapshot
from spark_sink.lake.records import StoppedTable
from spark_sink.metrics import MAX_SOURCES, serving_metrics
from spark_sink.reporter import PAGE_STOPS, Access, LakeName, Reporter, pages
from spark_sink.work import CutSeen, TableId
from tests.controlplane_api.callers import made
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.lake_facts import table_of
from tests.metrics_token import token_file
from tests.servers import free_port
from tests.spark_sink.landing import Table, Writer, insert
from tests.stack import http_client, wait_for


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("REPORT_SECONDS", 0.2), ("LEAST_SECONDS", 0.05), ("MAX_BACKOFF_SECONDS", 0.4)):
        monkeypatch.setattr(reporter_module, name, seconds)
    # what a busy machine may take longer for, without being what a test is about
    for name in ("REQUEST_SECONDS", "FAREWELL_SECONDS"):
        monkeypatch.setattr(reporter_module, name, 300)
    monkeypatch.setattr("controlplane_api.api.presence.SILENT_SECONDS", 3600)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = open_database(f"sqlite:///{tmp_path}/control.db")
    yield opened
    opened.close()


@pytest.fixture
def status() -> SinkStatus:
    return SinkStatus()


@contextmanager
def reporting(url: str, status: SinkStatus, folder: Path, retry: Callable[[Any], None] = print) -> Iterator[Reporter]:
    reporter = Reporter(url, LakeName("main", str(folder / "lake"), str(folder / "landing")), status)
    reporter.start(retry)
    try:
        yield reporter
    finally:
        reporter.stop()


def test_reporter_when_the_api_knows_its_callers_then_comes_with_the_token_of_its_file(
    database: Database, status: SinkStatus, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    admin, sink = made(database, Role.ADMIN, None), made(database, Role.SINK, None)
    file = tmp_path / "api.token"
    lake = LakeName("main", str(tmp_path / "lake"), str(tmp_path / "landing"))
    with serving(database, access=ApiAccess()) as url, http_client(url) as client:
        reporter = Reporter(url, lake, status, Access(file))
        assert not reporter._try_to_tell()  # there is no file
        for content in ("", "two words", made(database, Role.VIEWER, None).token):
            file.write_text(content)
            assert not reporter._try_to_tell()
        assert client.get("/api/v1/lakes", headers=admin.headers).json()["lakes"] == []
        file.write_text(f"{sink.token}\n")  # read again for each report
        assert reporter._try_to_tell()
        assert [each["lake"] for each in client.get("/api/v1/lakes", headers=admin.headers).json()["lakes"]] == ["main"]
    assert sink.token not in caplog.text


def table(name: str) -> TableId:
    return TableId("acme", "shop", "shop", name)


def stopped(*names: str, message: str = "broken") -> dict[TableId, StoppedTable]:
    return {table(name): StoppedTable(table(name), 2, 2, "BROKEN", message, terminal=True, at_us=7) for name in names}


def cut(number: int, source: str = "shop", commit_us: int = 5) -> CutSeen:
    return CutSeen("acme", source, 1, number, number, 4, 4, commit_us)


def lakes(url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{url}/api/v1/lakes", timeout=300).json()["lakes"]
    return found


def wait_for_stops(url: str, count: int) -> None:
    wait_for(f"{count} stops", lambda: [each["stopped_tables"] for each in lakes(url)] == [count], every=0.02)


def test_lake_when_tables_stop_and_go_on_then_the_control_plane_follows(
    database: Database, status: SinkStatus, tmp_path: Path
) -> None:
    status.began(3, stopped("a", "b"))
    with serving(database) as url, reporting(url, status, tmp_path):
        wait_for_stops(url, 2)
        (shown,) = lakes(url)
        assert (shown["lake"], shown["state"], shown["url"]) == ("main", "following", str(tmp_path / "lake"))
        status.stopped_are(stopped("b", "c", "d"))
        wait_for_stops(url, 3)
        status.applied([cut(4), cut(5)], 10, 0.5)
        status.stopped_are({})
        wait_for_stops(url, 0)
    with database.read() as connection:
        row = connection.execute(LakeSource.__table__.select()).one()
    assert (row.source, row.cut, row.entry, row.last_commit_timestamp_us) == ("shop", 5, 5, 5)


def test_lake_when_more_tables_have_stopped_than_a_page_holds_then_all_come(
    database: Database, status: SinkStatus, tmp_path: Path
) -> None:
    count = 2 * PAGE_STOPS + 7
    status.began(1, stopped(*map(str, range(count)), message="☃" * (MAX_MESSAGE_CHARS + 99)))
    with serving(database) as url, reporting(url, status, tmp_path):
        wait_for_stops(url, count)


def test_lake_when_the_api_is_away_or_loses_its_database_then_all_is_told_again_and_the_log_says_it_once(
    database: Database, status: SinkStatus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "menura.sink")
    port = free_port()
    status.began(3, stopped("a"))
    url = f"http://127.0.0.1:{port}"
    with reporting(url, status, tmp_path) as reporter:
        wait_for("a failure", lambda: "does not hear of the lake" in caplog.text, every=0.02)
        failed = reporter._number
        wait_for("more tries", lambda: reporter._number > failed + 1, every=0.02)
        assert caplog.text.count("does not hear of the lake") == 1
        with serving(database, port):
            wait_for_stops(url, 1)
            status.stopped_are(stopped("a", "b"))
            wait_for_stops(url, 2)
            with database.write() as connection:
                for model in (LakeStop, LakeSource, Lake):
                    connection.execute(delete(model))
            wait_for_stops(url, 2)
        assert "hears of the lake again" in caplog.text


def test_retry_when_somebody_asks_then_the_sink_is_told_with_the_next_reply(
    database: Database, status: SinkStatus, tmp_path: Path
) -> None:
    asked: list[TableId] = []
    status.began(3, stopped("a", "b"))
    with serving(database) as url, reporting(url, status, tmp_path, asked.extend):
        wait_for_stops(url, 2)
        assert asked == []
        with database.write() as connection:
            ask_retry(connection, [table_of("b")])
        wait_for("the sink to hear it", lambda: asked, every=0.02)
    assert set(asked) == {table("b")}


def test_sink_when_an_error_ends_it_then_the_control_plane_hears_it_also_before_its_start(
    database: Database, status: SinkStatus, tmp_path: Path
) -> None:
    broken = LogEntryUnreadable("reading entry 7", "it is broken", remedy="Restore it")
    with serving(database) as url:
        lake = LakeName("main", "lake", str(tmp_path))
        Reporter(url, lake, status).fail(broken)  # it has not come to know its lake
        (shown,) = lakes(url)
        assert (shown["state"], shown["problem"]["code"]) == ("failed", "LOG_ENTRY_UNREADABLE")
        status.began(3, stopped("a"))
        reporter = Reporter(url, lake, status)
        reporter.start(print)
        wait_for_stops(url, 1)
        assert lakes(url)[0]["state"] == "following"
        reporter.fail(broken)
        (shown,) = lakes(url)
        assert (shown["state"], shown["stopped_tables"]) == ("failed", 1)
        Reporter(url, lake, SinkStatus()).fail(broken)  # the next one dies at its start
        assert lakes(url)[0]["stopped_tables"] == 1


@pytest.mark.parametrize("answer", [b"", b"{}", b"<html>", b"x" * 100_000])
def test_sink_when_another_service_answers_then_it_goes_on_and_says_so(
    status: SinkStatus, tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: bytes
) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Other)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with reporting(f"http://127.0.0.1:{server.server_port}", status, tmp_path):
            wait_for("the log to say it", lambda: "its answer can't be read" in caplog.text, every=0.02)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_sink_when_the_api_takes_connections_and_says_nothing_then_its_end_does_not_wait_for_it(
    status: SinkStatus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_module, "FAREWELL_SECONDS", 0.1)
    monkeypatch.setattr(reporter_module, "REQUEST_SECONDS", 600)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        reporter = Reporter(
            f"http://127.0.0.1:{silent.getsockname()[1]}", LakeName("main", "lake", str(tmp_path)), status
        )
        reporter.start(print)
        connection, _ = silent.accept()
        status.applied([cut(1)], 1, 0.1)  # a batch does not wait either
        reporter.stop()
        assert reporter._thread.is_alive()  # it still asks
        silent.close()  # nobody takes its last try either
        connection.close()
        reporter._thread.join(300)
        assert not reporter._thread.is_alive()


@pytest.mark.parametrize("api", ["127.0.0.1:7080", "ftp://host", "http://", "http://host:port", "http://host:0"])
def test_api_when_it_is_no_address_then_the_setting_is_refused(api: str, status: SinkStatus) -> None:
    with pytest.raises(SinkSettingInvalid, match="--api"):
        Reporter(api, LakeName("main", "lake", "landing"), status)


def test_pages_when_much_has_changed_then_each_is_bounded_and_all_are_there() -> None:
    status = SinkStatus()
    status.began(1, stopped(*map(str, range(PAGE_STOPS + 1))))
    before = status.now()
    status.applied([cut(1, f"s{number}") for number in range(MAX_ROWS + 1)], 1, 1.0)
    status.stopped_are({})
    departed = dict.fromkeys(list(before.stopped)[:2], "lenient: ...")
    status.policies_are(departed)
    found = list(pages(before, status.now()))
    assert [each.said for each in found[0].policies] == ["lenient: ..."] * 2
    now = status.now()
    status.policies_are(dict(list(departed.items())[:1]))
    (page,) = pages(now, status.now())
    assert [(each.table, each.said) for each in page.policies] == [(list(departed)[1].table, "")]
    assert [len(page.sources) for page in found] == [MAX_ROWS, 1]
    assert [len(page.resumed) for page in found] == [PAGE_STOPS + 1, 0]
    assert len(list(pages(Snapshot(), before))) == 2
    (nothing,) = pages(before, before)
    assert (nothing.sources, nothing.stopped, nothing.resumed) == ((), (), ())


def scraped(address: str) -> dict[str, str]:
    with urlopen(f"http://{address}/metrics", timeout=300) as answer:
        lines = answer.read().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def test_metrics_when_scraped_then_figures_are_of_now_and_what_is_unknown_is_absent(
    status: SinkStatus, tmp_path: Path
) -> None:
    writer = Writer(tmp_path)
    with serving_metrics("127.0.0.1:0", status, str(tmp_path), {}) as address:
        found = scraped(address)
        assert found["menura_sink_batches_total"] == "0.0"
        assert found["menura_sink_landing_lag_seconds"] == "0.0"
        assert not [name for name in found if name.startswith("menura_sink_freshness_seconds{")]
        writer.cut((Table("t", {"id": pa.int32()}), [insert(id=1)]))
        assert float(scraped(address)["menura_sink_landing_lag_seconds"]) > 0
        status.applied([cut(1, commit_us=now_us() - 10_000_000), cut(1, "quiet", commit_us=0)], 12, 0.25)
        status.stopped_are(stopped("a", "b"))
        found = scraped(address)
    shop = '{source="shop",tenant="acme"}'
    assert 10 <= float(found[f"menura_sink_freshness_seconds{shop}"]) < 3600
    assert f"menura_sink_freshness_seconds{shop.replace('shop', 'quiet')}" not in found
    assert found[f"menura_sink_source_tables_stopped{shop}"] == "2.0"
    assert found["menura_sink_tables_stopped"] == "2.0"
    assert (found["menura_sink_rows_total"], found["menura_sink_batch_seconds_total"]) == ("12.0", "0.25")
    assert found["menura_sink_landing_lag_seconds"] == "0.0"


def test_metrics_when_the_landing_is_of_a_later_version_then_the_others_are_told(
    status: SinkStatus, tmp_path: Path
) -> None:
    identity = tmp_path / IDENTITY_PATH
    identity.parent.mkdir(parents=True, exist_ok=True)
    identity.write_bytes(b"{")
    with serving_metrics("127.0.0.1:0", status, str(tmp_path), {}) as address:
        found = scraped(address)
    assert found["menura_sink_batches_total"] == "0.0"
    assert "menura_sink_landing_lag_seconds" not in found


class Broken(Collector):
    def collect(self) -> Iterator[Metric]:
        raise ZeroDivisionError("a defect of a collector")


def test_metrics_when_a_collector_has_a_defect_then_the_log_says_it(caplog: pytest.LogCaptureFixture) -> None:
    with metrics_port.serving([Broken()], "127.0.0.1:0", SinkSettingInvalid) as address:
        with pytest.raises(OSError), urlopen(f"http://{address}/metrics", timeout=300):
            raise AssertionError("unreachable")
        wait_for("the log", lambda: "a defect of a collector" in caplog.text)


def test_readyz_when_the_sink_starts_follows_and_waits_then_it_says_what_for(status: SinkStatus) -> None:
    health = status.health()
    assert health.unready() == ["the sink has not begun to follow its landing"]
    with status.following():
        assert not health.unready()
        status.waits_for(LakeProblem("STORE_AWAY", "no answer", terminal=False))
        assert health.unready() == ["the sink waits for its stores: STORE_AWAY"]
        status.waits_for(None)
        assert not health.unready()
    assert health.unready()
    assert not health.lifeless()


def test_metrics_when_there_are_many_sources_then_labels_are_bounded_and_none_names_a_table(
    status: SinkStatus, tmp_path: Path
) -> None:
    status.applied([cut(1, f"s{number}") for number in range(MAX_SOURCES + 50)], 1, 1.0)
    status.stopped_are(stopped("secret"))
    with serving_metrics("127.0.0.1:0", status, str(tmp_path), {}) as address:
        found = scraped(address)
    assert sum(name.startswith("menura_sink_freshness_seconds{") for name in found) == MAX_SOURCES
    assert not [name for name in found if "secret" in name]


@pytest.mark.parametrize("listen", ["", "nonsense", "127.0.0.1:x", "127.0.0.1:99999", "192.0.2.1:0"])
def test_metrics_when_the_address_can_not_be_listened_on_then_the_setting_is_refused(
    listen: str, status: SinkStatus, tmp_path: Path
) -> None:
    with (
        pytest.raises(SinkSettingInvalid, match="can't be listened on"),
        serving_metrics(listen, status, "landing", {}, token_file=token_file(tmp_path)),
    ):
        raise AssertionError("unreachable")
