"""The search service over indexes in OpenSearch: answers as over a folder's, and what it says of the cluster."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from spark_sink.search.entries import Entry
from spark_sink.search.lag import BETWEEN
from spark_sink.search.opensearch import position
from spark_sink.search.opensearch.cluster import Cluster
from spark_sink.search.opensearch.indexes import Indexes
from spark_sink.search.searching import engine_of, open_search
from spark_sink.search.service import SearchService
from tests.opensearch_node import OpenSearchNode
from tests.servers import free_port
from tests.spark_sink.landing import insert, table_id
from tests.spark_sink.search_shop import ORDERS_ID, VIEW_ID, Shop
from tests.spark_sink.test_search_service import (  # noqa: F401  (tests, and their fixtures)
    LONG,
    client,
    found,
    listed,
    patient,
    shop_client,
    test_a_search_when_it_is_asked_then_rows_come_whole_with_counts_and_how_far_the_index_is,
    test_a_tenant_when_it_asks_then_reaches_no_index_of_another,
    test_an_index_when_the_lake_has_gone_on_then_it_is_said_how_far_until_it_follows,
)


@pytest.fixture
def shop(tmp_path: Path, opensearch: OpenSearchNode) -> Iterator[Shop]:
    with closing(Cluster(opensearch.url, prefix="service")) as cluster:
        shop = Shop(tmp_path, cluster)
        shop.fill()
        shop.index()
        yield shop
        opensearch.ask("DELETE", "/service-*")


@pytest.fixture
def kept(shop: Shop) -> Shop:
    """The same: a cluster's indexes go with their test."""
    return shop


def test_indexes_when_they_are_listed_then_each_is_named_as_its_table_in_pages_and_one_between_cuts_says_so(
    shop: Shop,
    client: httpx.Client,  # noqa: F811
) -> None:
    shop.cut((LONG, [insert(id=1)]))
    shop.index(table_id(LONG), ORDERS_ID, VIEW_ID)
    names = [LONG.name, "orders", "orders_of_customers"]
    assert listed(client) == names
    first = client.post("/v1/indexes", json={"tenant": "acme", "limit": 2}).json()
    assert first["next"] == ["shop", "shop", "orders"]
    assert listed(client, after=first["next"], limit=2) == names[2:]
    reached = open_search(shop.indexes, ORDERS_ID).reached
    output = engine_of(shop.indexes).output(ORDERS_ID, reached.definition, reached)
    output.upsert([Entry("a" * 32, {"id": 70}, {}, gsn=1000)])
    output.close()
    shop.indexes.ask("POST", "/service-*/_refresh")
    answer = found(client)
    assert (answer["cut"], answer["behind_us"], answer["unknown"]) == (1, None, BETWEEN)
    live = Indexes(shop.indexes, ORDERS_ID).live()
    shop.indexes.ask("DELETE", f"/{live}/_doc/{position.POSITION}?refresh=true")  # by another hand
    _, damaged, _ = client.post("/v1/indexes", json={"tenant": "acme"}).json()["indexes"]
    assert (damaged["table"], damaged["rows"]) == ("orders", None)
    assert damaged["unknown"]


def test_a_service_when_its_cluster_is_away_then_it_is_not_ready_and_says_so(opensearch: OpenSearchNode) -> None:
    with closing(Cluster(opensearch.url)) as cluster:
        assert SearchService(cluster).health.unready() == []
    away = Cluster(f"http://127.0.0.1:{free_port()}")
    (said,) = SearchService(away).health.unready()
    assert said == f"{away} can't be asked: Connection refused"
