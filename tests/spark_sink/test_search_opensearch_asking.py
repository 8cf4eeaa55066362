"""OpenSearch gives the answers that a folder's index gives: the same tests."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from spark_sink.search.opensearch.cluster import Cluster
from tests.opensearch_node import OpenSearchNode
from tests.spark_sink.test_search import Where
from tests.spark_sink.test_search_asking import (  # noqa: F401  (tests)
    AMOUNTS,
    TEXTS,
    test_a_filter_when_it_compares_then_no_digit_is_lost,
    test_a_row_when_it_is_found_then_it_has_all_columns_as_they_are,
    test_a_search_when_it_can_not_be_answered_then_the_error_says_what_to_change,
    test_a_search_when_its_rows_are_too_many_bytes_then_the_first_ones_are_given,
    test_a_search_when_its_text_is_of_any_characters_then_it_is_answered_or_refused,
    test_a_text_when_it_is_searched_then_rows_have_all_of_its_words,
    test_facets_when_values_are_counted_then_each_has_its_rows_and_the_rest_is_said,
    value_row,
    written,
)


@pytest.fixture(scope="module")
def texts(opensearch: OpenSearchNode) -> Iterator[Where]:
    with closing(Cluster(opensearch.url, prefix="texts")) as cluster:
        yield written(cluster, TEXTS)


@pytest.fixture(scope="module")
def values(opensearch: OpenSearchNode) -> Iterator[Where]:
    with closing(Cluster(opensearch.url, prefix="values")) as cluster:
        yield written(cluster, list(map(value_row, range(len(AMOUNTS)))))
