"""Indexes in OpenSearch: the same tests as of a folder's, and what only a server does."""

import gc
import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from spark_sink.search.opensearch import bulk
from spark_sink.search.opensearch.bulk import Bulk
from spark_sink.search.opensearch.cluster import Cluster
from spark_sink.search.opensearch.indexes import Indexes
from spark_sink.search.opensearch.output import IndexOutput
from tests.opensearch_node import OpenSearchNode
from tests.servers import ROOT
from tests.spark_sink.killing import Killed, kill_at
from tests.spark_sink.landing import Workload, Writer, insert
from tests.spark_sink.test_export import ID, ORDERS, Dumps, Lake, row
from tests.spark_sink.test_search import (  # noqa: F401  (tests)
    Where,
    change,
    check_equal,
    compared,
    follow,
    in_lake,
    killed_while_built_anew,
    reached_in,
    shown,
    test_a_check_when_an_index_lacks_a_row_or_has_others_then_it_says_how_many,
    test_a_table_when_its_index_is_to_be_built_anew_and_is_refused_then_it_is_tried_once_for_each_version,
    test_a_table_without_a_key_when_it_is_to_be_indexed_then_is_refused_and_others_go_on,
    test_an_index_of_a_view_when_its_tables_change_then_it_is_equal_at_each_cut,
    test_an_index_when_a_step_fails_in_its_midst_then_nothing_of_it_is_there_and_the_next_one_has_all,
    test_an_index_when_it_is_behind_the_lake_then_it_says_since_when,
    test_an_index_when_its_table_changes_at_random_then_searches_see_it_at_one_cut_and_no_other_rows,
    test_an_index_when_its_table_is_another_one_now_then_it_is_built_anew,
    test_an_index_when_many_rows_change_or_the_changelog_lacks_some_then_it_is_built_anew,
    test_an_index_when_rows_come_without_all_values_then_it_has_all_of_them,
)

_NUMBERS = itertools.count()


@pytest.fixture
def held(writer: Writer, lake: Path) -> Lake:
    return Lake(writer, lake)


@pytest.fixture
def where(opensearch: OpenSearchNode) -> Iterator[Where]:
    with closing(Cluster(opensearch.url, prefix=f"test{next(_NUMBERS)}")) as cluster:
        yield cluster
        opensearch.ask("DELETE", f"/{cluster.prefix}-*")


@pytest.mark.parametrize(
    ("kind", "name", "call"),
    [
        (IndexOutput, "_begin", 1),
        (IndexOutput, "upsert", 1),
        (IndexOutput, "commit", 1),
        (Bulk, "flush", 1),
        (IndexOutput, "_put_position", 1),
        (Indexes, "refresh", 2),
        (Indexes, "put_in_place", 1),
        (Indexes, "remove", 1),
    ],
)
def test_an_index_when_it_is_killed_while_it_is_built_anew_then_the_former_or_the_new_one_answers(
    held: Lake, where: Where, kind: type, name: str, call: int
) -> None:
    killed_while_built_anew(held, where, kind, name, call)


#: follows to the newest cut, and is killed before the nth request of a kind, behind its answer, or in the midst of one
CHILD = """
import os, random, signal, sys, threading
from spark_sink.search.following import Follower
from spark_sink.search.opensearch import bulk
from spark_sink.search.opensearch.cluster import Cluster
from spark_sink.search.searching import engine_of
from spark_sink.work import TableId
lake, url, prefix, table, of, moment, left = sys.argv[1:]
left, bulk.BULK_BYTES = int(left), 700
kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
real = Cluster.ask
def ask(self, method, path, *arguments, **named):
    global left
    left -= of in path
    chosen = of in path and not left
    if chosen and moment == "before":
        kill()
    if chosen and moment == "midst":
        threading.Timer(random.random() * 0.01, kill).start()
    answer = real(self, method, path, *arguments, **named)
    if chosen and moment == "behind":
        kill()
    return answer
Cluster.ask = ask
follower = Follower(lake, engine_of(Cluster(url, prefix=prefix)), [TableId(*table.split("/"))])
while follower.turn():
    pass
print("to its end", flush=True)
kill()
"""


@pytest.fixture(autouse=True)
def many_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several of one step, and at once."""
    monkeypatch.setattr(bulk, "BULK_BYTES", 700)


def turns(held: Lake, where: Where) -> tuple[Workload, Dumps]:
    work = Workload(3)
    held.cut((ORDERS, work.orders.follow([insert(**row(number, "a")) for number in range(30)])))
    return work, Dumps(work, held)


def test_an_index_when_it_is_killed_before_any_request_then_it_is_as_at_one_cut_and_goes_on(
    held: Lake, where: Cluster
) -> None:
    """In its threads a request is not sent, and all later ones are not."""
    work, dumps = turns(held, where)
    follow(held, where)
    for call in itertools.count(1):
        change(work, held, dumps)
        former = reached_in(where).cut
        with pytest.MonkeyPatch.context() as patched:
            kill_at(patched, Cluster, "ask", call)
            try:
                follow(held, where)
                break
            except Killed:
                pass
        gc.collect()
        reached = reached_in(where)
        assert not reached.is_between
        assert reached.cut >= former
        assert shown(where) == in_lake(held, cut=reached.cut)
        assert compared(where).is_equal
        where.ask("POST", f"/{Indexes(where, ID).alias}/_refresh")  # whoever does it
        assert reached_in(where).is_between or shown(where) == in_lake(held, cut=reached_in(where).cut)
        follow(held, where)
        check_equal(held, where)
    assert call > 8
    check_equal(held, where)
    assert len(list(Indexes(where, ID)._found())) == 1


@pytest.mark.parametrize(
    ("of", "moment", "left"),
    [("_bulk", "midst", 2), ("_bulk", "behind", 2), ("_doc/position", "behind", 4), ("_refresh", "before", 2)],
)
def test_an_index_when_its_process_is_killed_then_it_is_as_at_one_cut_and_the_next_one_goes_on(
    held: Lake, where: Cluster, of: str, moment: str, left: int
) -> None:
    work, dumps = turns(held, where)
    follow(held, where)
    change(work, held, dumps)
    change(work, held, dumps)
    names = [str(held.folder), str(where), where.prefix, "/".join((ID.tenant, ID.source, ID.database, ID.table))]
    code = [sys.executable, "-c", CHILD, *names, of, moment, str(left)]
    child = subprocess.run(code, cwd=ROOT, check=False, capture_output=True, text=True)
    assert (child.returncode, child.stdout) == (-9, ""), child.stderr
    assert shown(where) == in_lake(held, cut=reached_in(where).cut)
    assert compared(where).is_equal
    follow(held, where)
    check_equal(held, where)
