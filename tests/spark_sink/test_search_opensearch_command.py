"""`menura search --opensearch` from its arguments to what it prints and its exit code: as with a folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_sink.errors import SearchIndexFailed
from spark_sink.search.opensearch import cluster
from spark_sink.search.opensearch.indexes import Indexes
from tests.opensearch_node import OpenSearchNode
from tests.servers import free_port
from tests.spark_sink.test_export import ID, Lake
from tests.spark_sink.test_search_command import (  # noqa: F401  (a test, and its fixture)
    NAME,
    Command,
    held,
    test_a_table_when_it_is_indexed_then_it_is_found_with_facets_and_how_far_that_is,
)


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], opensearch: OpenSearchNode
) -> Iterator[Command]:
    yield Command(monkeypatch, capsys, "--opensearch", opensearch.url, "--opensearch-prefix", "commands")
    opensearch.ask("DELETE", "/commands-*")


def test_a_command_when_its_indexes_are_in_opensearch_then_it_checks_them_and_says_what_is_wrong(
    held: Lake,  # noqa: F811
    command: Command,
    opensearch: OpenSearchNode,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    code, out, err = command.run("query", "x", "--table", NAME)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "SEARCH_INDEX_MISSING" in err
    assert f"menura search index {NAME} --lake LAKE --opensearch {opensearch.url}" in err
    assert command.run("index", NAME, "--lake", str(held.folder)) == (0, "", "")
    code, out, _ = command.run("check", NAME)
    assert code == 0
    assert f"{NAME}: equal at cut 1: 9 rows in the index, 9 in the lake" in out
    where = cluster.Cluster(opensearch.url, prefix="commands")
    live = Indexes(where, ID).live()
    hits = where.ask("POST", f"/{live}/_search", {"query": {"exists": {"field": "exact.note"}}, "size": 1})
    key = cluster.part(hits.document, str, "hits", "hits", 0, "_id")
    where.ask("DELETE", f"/{live}/_doc/{key}?refresh=true")  # by another hand
    where.close()
    code, out, _ = command.run("check", NAME)
    assert code == 1
    assert "lacks 1 rows, has 0 too many, and 0 with other values" in out
    monkeypatch.setattr(cluster, "RETRY_SECONDS", 0)
    away = Command(command._monkeypatch, command._capsys, "--opensearch", f"http://127.0.0.1:{free_port()}")
    for words in (("index", NAME, "--lake", str(held.folder)), ("query", "x", "--table", NAME), ("check", NAME)):
        code, out, err = away.run(*words)
        assert (code, out, err.count("\n")) == (SearchIndexFailed.exit_code, "", 1)
        assert "Connection refused" in err
    login = tmp_path / "login"
    login.write_text("menura:a-secret")
    code, out, err = command.run("check", NAME, "--opensearch-login", str(login))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "over http" in err
    assert "a-secret" not in err
    with pytest.raises(SystemExit):
        command.run("check", NAME, "--folder", str(tmp_path))
