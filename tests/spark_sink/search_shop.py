"""A lake with two tables and a view that joins them, their search indexes, and the search service over these.

Everything runs as it does in production, but for the sink, whose parts are called without Spark.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
from menura.http_server import server_of
from menura.views.definition import ViewDefinition

from spark_sink.ingest.view_task import ViewOutcome, ViewSettings, attempted
from spark_sink.ingest.views import Views
from spark_sink.lake.records import Records
from spark_sink.lake.retention import KEEP_HOURS
from spark_sink.lake.table_folders import told_folders
from spark_sink.lake.tail import AT_ONCE
from spark_sink.search.following import Follower
from spark_sink.search.opensearch.cluster import Cluster
from spark_sink.search.searching import engine_of
from spark_sink.search.service import SearchService
from spark_sink.views.maintain import ViewWork, view_table_id
from spark_sink.work import TableId
from tests.spark_sink.landing import Table, Values, Writer, insert, table_id
from tests.spark_sink.test_export import Lake
from tests.stack import wait_for

CUSTOMERS = Table("customers", {"id": pa.int64(), "name": pa.string(), "city": pa.string(), "country": pa.string()})
ORDERS = Table(
    "orders",
    {
        "id": pa.int64(),
        "customer_id": pa.int64(),
        "status": pa.string(),
        "total": pa.decimal128(10, 2),
        "note": pa.string(),
        "gift": pa.bool_(),
        "placed_at": pa.timestamp("us"),
    },
)
ORDERS_ID, VIEW_ID = table_id(ORDERS), view_table_id("acme", "orders_of_customers")
SQL = """\
SELECT o.id, o.status, o.total, o.note, o.gift, o.placed_at, c.name AS customer, c.city, c.country
FROM shop.shop.orders o LEFT JOIN shop.shop.customers c ON c.id = o.customer_id"""
NAMES = (
    ("Ada Lovelace", "London", "United Kingdom"),
    ("Edsger Dijkstra", "Rotterdam", "Netherlands"),
    ("Grace Hopper", "New York", "United States"),
    ("Zofia Żółkiewska", "Kraków", "Poland"),
    ("Grete Hermann", "Bremen", "Germany"),
)
NOTES = (
    "Red bicycle with a basket, ring twice",
    "Two red lamps, one without a bulb",
    "Green bicycle bell",
    "Leave it at the neighbour's door",
    None,
)
STATES = ("paid", "shipped", "paid", "returned", "open", "shipped", "paid")
PLACED_AT = datetime.fromisoformat("2026-11-01T08:30:00")
#: beyond 2^53
LAST_ID = 2**53 + 40


def order(number: int, **values: object) -> Values:
    return {
        "id": LAST_ID if number == 40 else number,
        "customer_id": number % len(NAMES),
        "status": STATES[number % len(STATES)],
        "total": Decimal(number * 137 % 9_000) / 100 + 5,
        "note": NOTES[number // 2 % len(NOTES)],
        "gift": number % 4 == 0,
        "placed_at": PLACED_AT + timedelta(hours=7 * number, microseconds=number),
        **values,
    }


def joined(last: int = 40) -> list[Values]:
    """Rows of the view, of orders up to this one."""
    orders = (order(number) for number in range(1, last + 1))
    people = [dict(zip(("customer", "city", "country"), each, strict=True)) for each in NAMES]
    return [{**each, **people[int(str(each["customer_id"]))]} for each in orders]


class Shop:
    """Of tenant acme; `index` brings its indexes to the newest cut."""

    def __init__(self, folder: Path, indexes: Path | Cluster | None = None) -> None:
        self.lake = Lake(Writer(folder / "landing"), folder / "lake")
        self.indexes = indexes or folder / "indexes"
        lake = str(self.lake.folder)
        settings = ViewSettings(lake, AT_ONCE, KEEP_HOURS)

        def run(works: Iterable[ViewWork]) -> list[ViewOutcome]:
            with told_folders(lake, {}):  # as each task of a sink is
                return [attempted(settings, work) for work in works]

        self._views = Views(lake, Records(lake), run, nullcontext())
        self._views.want([ViewDefinition("acme", VIEW_ID.table, SQL)])

    def fill(self) -> None:
        people = [
            insert(id=number, name=name, city=city, country=country)
            for number, (name, city, country) in enumerate(NAMES)
        ]
        self.lake.cut((CUSTOMERS, people), (ORDERS, [insert(**order(number)) for number in range(1, 41)]))
        self._views.turn()

    def cut(self, *batches: object) -> None:
        self.lake.cut(*batches)
        self._views.turn()

    def index(self, *tables: TableId) -> None:
        engine = engine_of(self.indexes)
        with engine.taking():
            follower = Follower(str(self.lake.folder), engine, tables or (ORDERS_ID, VIEW_ID))
            while follower.turn():
                pass
            follower.close()
        assert not follower.failed


@contextmanager
def answering(service: SearchService) -> Iterator[str]:
    """Its URL."""
    server = server_of(service.app)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for("the search service to listen", lambda: server.started or None, every=0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
