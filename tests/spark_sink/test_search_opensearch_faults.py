"""Indexes in OpenSearch when it is busy, refuses rows, forgets versions or starts anew, and when two write."""

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from spark_sink.errors import SearchDocumentRefused, SearchIndexFailed, SearchIndexTaken
from spark_sink.search import following
from spark_sink.search.asking import Search
from spark_sink.search.entries import Entry, Gone
from spark_sink.search.following import Follower
from spark_sink.search.opensearch import cluster, output
from spark_sink.search.opensearch.cluster import Cluster
from spark_sink.search.opensearch.indexes import Indexes
from spark_sink.search.opensearch.output import IndexOutput
from spark_sink.search.searching import engine_of, open_search
from tests.opensearch_node import OpenSearchNode
from tests.spark_sink.killing import Killed, kill_at
from tests.spark_sink.landing import Table, Writer, altered, delete, insert, table_id, update
from tests.spark_sink.test_export import ID, ORDERS, Lake, row
from tests.spark_sink.test_search import PLAIN, check_equal, compared, follow, in_lake, reached_in, shown, which
from tests.stack import wait_for


@pytest.fixture
def held(writer: Writer, lake: Path) -> Lake:
    found = Lake(writer, lake)
    found.cut((ORDERS, [insert(**row(number, "a")) for number in range(9)]))
    return found


@pytest.fixture
def where(opensearch: OpenSearchNode) -> Iterator[Cluster]:
    with closing(Cluster(opensearch.url, prefix="faults")) as found:
        yield found
        opensearch.ask("DELETE", f"/{found.prefix}-*")


def set_index(where: Cluster, **settings: object) -> None:
    answer = where.ask("PUT", f"/{Indexes(where, ID).live()}/_settings", {"index": settings})
    assert answer.status == 200, answer


def refresh(where: Cluster) -> None:
    """As a node does that starts anew."""
    assert where.ask("POST", f"/{where.prefix}-*/_refresh").status == 200


def test_rows_when_the_cluster_is_busy_then_they_are_sent_until_it_takes_them(
    held: Lake, where: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow(held, where)
    held.cut((ORDERS, [delete(**row(1, "a")), insert(**row(20))]))
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            set_index(where, **{"blocks.read_only_allow_delete": None})

    monkeypatch.setattr(cluster, "pause", pause)
    set_index(where, **{"blocks.read_only_allow_delete": True})  # as where its disk is full: it answers 429
    follow(held, where)
    assert len(pauses) == 3
    assert 0 < pauses[0] < pauses[2] <= cluster.MOST_PAUSE_SECONDS
    check_equal(held, where)


@pytest.mark.parametrize("which_ones", ["all", "some"])
def test_rows_when_the_cluster_stays_busy_then_the_run_ends_and_the_next_one_goes_on(
    held: Lake, where: Cluster, monkeypatch: pytest.MonkeyPatch, which_ones: str
) -> None:
    follow(held, where)
    before = shown(where)
    held.cut((ORDERS, [insert(**row(20)), insert(**row(21))]))
    real = Cluster.ask

    def busy(self: Cluster, method: str, path: str, *arguments: Any, **named: Any) -> cluster.Answer:
        """It takes the first row of each request; a proxy before it takes none."""
        if "_bulk" not in path:
            return real(self, method, path, *arguments, **named)
        if which_ones == "all":
            return cluster.Answer(503, None)
        lines = arguments[0].splitlines(keepends=True)
        answer = real(self, method, path, b"".join(lines[:2]))
        rejected = {"status": 429, "error": {"type": "rejected_execution_exception"}}
        for action in map(json.loads, lines[2::2]):
            answer.document["items"].append({"index": {"_id": action["index"]["_id"], **rejected}})  # type: ignore[index]
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(cluster, "pause", lambda _: None)
        patched.setattr(Cluster, "ask", busy)
        if which_ones == "all":
            patched.setattr(cluster, "RETRY_SECONDS", 0)
            with pytest.raises(SearchIndexFailed, match="busy: 503"):
                follow(held, where)
            assert shown(where) == before
        else:
            assert not follow(held, where).failed
    follow(held, where)
    check_equal(held, where)


def test_a_row_when_it_is_refused_then_its_table_is_left_out_by_its_digest_and_others_go_on(
    held: Lake, where: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.cut((PLAIN, [insert(id=1)]))
    follow(held, where, ID, table_id(PLAIN))
    held.cut((ORDERS, [insert(**row(20, "secret"))]), (PLAIN, [insert(id=2)]))
    real = output.document_of
    with monkeypatch.context() as patched:
        patched.setattr(output, "document_of", lambda entry, of: {**real(entry, of), "unknown": entry.values["id"]})
        follower = follow(held, where, ID)
        (failure,) = follower.failed.values()
        assert isinstance(failure, SearchDocumentRefused)
        assert "400 strict_dynamic_mapping_exception" in str(failure)
        assert "secret" not in str(failure)
    follower = follow(held, where, ID, table_id(PLAIN))
    assert not follower.failed
    check_equal(held, where)


def test_rows_when_they_are_larger_than_a_request_may_be_then_fewer_are_sent_at_once_and_one_alone_is_refused(
    held: Lake, where: Cluster
) -> None:
    """The node takes up to 1 MiB."""
    held.cut((ORDERS, [insert(**row(30 + number, f"{number} " * 200_000)) for number in range(4)]))
    held.cut((PLAIN, [insert(id=1)]))
    assert not follow(held, where).failed
    assert compared(where).is_equal
    assert open_search(where, ID).ask(Search("3", timeout_seconds=60)).total == 1
    held.cut((ORDERS, [insert(**row(40, "x" * (1 << 20)))]), (PLAIN, [insert(id=2)]))
    follower = follow(held, where, ID, table_id(PLAIN))
    assert list(follower.failed) == [ID]
    assert "key has the digest" in str(follower.failed[ID])
    assert shown(where, table_id(PLAIN)) == [(1,), (2,)]
    held.cut((ORDERS, [delete(**row(40, "x" * (1 << 20)))]))
    assert not follow(held, where).failed
    assert compared(where).is_equal


def test_an_index_when_a_second_process_takes_it_then_the_first_one_can_write_nothing_more(
    held: Lake, where: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is halted in the midst of a step, until the versions of what is deleted are forgotten."""
    monkeypatch.setattr(following, "BATCH_BYTES", 1)
    follow(held, where)
    set_index(where, gc_deletes="0s")
    held.cut((ORDERS, [update(row(1, "a"), row(1, "old")), update(row(2, "a"), row(2, "old"))]))
    puts: list[int] = []
    halted, goes_on = threading.Event(), threading.Event()
    failures: list[BaseException] = []
    real = following._put

    def put(out: IndexOutput, found: dict[str, Entry | Gone]) -> None:
        if threading.current_thread().name == "first":
            puts.append(len(found))
            if len(puts) == 2:
                halted.set()
                assert goes_on.wait(300)
        real(out, found)

    def first() -> None:
        try:
            with closing(Cluster(str(where), prefix=where.prefix)) as own:
                follow(held, own)
        except BaseException as failure:  # noqa: BLE001  (looked at below)
            failures.append(failure)

    monkeypatch.setattr(following, "_put", put)
    thread = threading.Thread(target=first, name="first")
    thread.start()
    assert halted.wait(300)
    held.cut((ORDERS, [delete(**row(1, "old"))]))
    follow(held, where)
    refresh(where)  # forgets
    goes_on.set()
    thread.join(300)
    assert len(puts) > 2
    (failure,) = failures
    assert isinstance(failure, SearchIndexTaken)
    assert "another process" in str(failure)
    refresh(where)
    check_equal(held, where)
    indexes = where.ask("GET", f"/{where.prefix}-*/_alias").document
    assert list(indexes) == [Indexes(where, ID).live()]  # type: ignore[call-overload]


@pytest.mark.parametrize("is_first", [True, False])
def test_an_index_built_anew_when_another_process_has_its_place_then_it_does_not_answer(
    held: Lake, where: Cluster, is_first: bool
) -> None:
    reached, former = None, None
    follow(held, where)
    known = reached_in(where)
    if is_first:
        where.ask("DELETE", f"/{Indexes(where, ID).live()}")
    else:
        reached, former = known, Indexes(where, ID).live()
    late = engine_of(where).output(ID, known.definition, reached)
    newer = engine_of(where).output(ID, known.definition, reached)
    late.clear()
    late.upsert([Entry("a" * 32, {"id": 70}, {}, gsn=1)])
    if is_first:
        newer.commit(known)
    live = Indexes(where, ID).live()
    with pytest.raises(SearchIndexTaken):
        late.commit(known)
    newer.commit(known)
    assert Indexes(where, ID).live() == live
    assert former in (None, live)
    late.close()
    newer.close()


def test_an_index_built_anew_when_another_process_comes_at_any_request_then_the_alias_never_goes(
    held: Lake, where: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process gives its index the alias at each moment of the second one's beginning."""
    real = Cluster.ask
    for moment in itertools.count(1):
        follow(held, where)
        known = reached_in(where)
        first = engine_of(where).output(ID, known.definition, None)
        requests = itertools.count(1)

        def ask(self: Cluster, *arguments: Any, **named: Any) -> cluster.Answer:
            if next(requests) == moment:  # noqa: B023
                monkeypatch.setattr(Cluster, "ask", real)
                with suppress(SearchIndexTaken):
                    first.commit(known)  # noqa: B023
            return real(self, *arguments, **named)

        with monkeypatch.context() as patched:
            patched.setattr(Cluster, "ask", ask)
            second = engine_of(where).output(ID, known.definition, None)
        assert open_search(where, ID).reached == known
        first.close()
        second.commit(known)
        second.close()
        where.ask("DELETE", f"/{Indexes(where, ID).live()}")
        if next(requests) <= moment:
            break
    assert moment > 5


def test_versions_when_they_are_forgotten_before_changes_are_handed_over_again_then_no_row_comes_back(
    held: Lake, where: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "BATCH_BYTES", 1)
    follow(held, where)
    set_index(where, gc_deletes="0s")
    held.cut((ORDERS, [insert(**row(20, "x"))]), (PLAIN, [insert(id=1)]))
    held.cut((ORDERS, [delete(**row(20, "x")), delete(**row(3, "a"))]))
    with monkeypatch.context() as patched:
        kill_at(patched, IndexOutput, "commit", 1)
        with pytest.raises(Killed):
            follow(held, where)
    refresh(where)
    assert reached_in(where).is_between
    assert in_lake(held) == [each for each in shown(where) if each[0] not in (20, 3)]
    follow(held, where)
    check_equal(held, where)


def test_newer_rows_when_nothing_of_the_step_is_as_new_then_the_run_ends_and_says_so(
    held: Lake, where: Cluster
) -> None:
    follow(held, where)
    reached = reached_in(where)
    key = "a" * 32
    for gsn, fails in ((50, False), (49, True), (50, False)):
        writes = engine_of(where).output(ID, reached.definition, reached)
        writes.upsert([Entry(key, {"id": 70}, {}, gsn=gsn)])
        if fails:
            with pytest.raises(SearchIndexTaken, match=f"newer rows of 1 keys, e.g. of the digest {key}"):
                writes.commit(reached)
            assert engine_of(where).reached(ID).is_between  # type: ignore[union-attr]
        else:
            writes.commit(reached)
        writes.close()


def test_a_node_when_it_is_killed_in_the_midst_of_a_step_then_searches_say_so_and_the_next_run_completes_it(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "node").mkdir()
    node = OpenSearchNode(tmp_path / "node")
    try:
        where = node.cluster
        follow(held, where)
        held.cut((ORDERS, [delete(**row(1, "a")), insert(**row(20))]))
        with monkeypatch.context() as patched:
            kill_at(patched, IndexOutput, "commit", 1)
            real = IndexOutput.upsert

            def upsert(self: IndexOutput, entries: Any, **named: Any) -> None:
                real(self, entries, **named)
                self._bulk.flush()

            patched.setattr(IndexOutput, "upsert", upsert)
            with pytest.raises(Killed):
                follow(held, where)
        assert not reached_in(where).is_between
        node.kill()
        node.start()
        where = node.cluster
        with closing(where):
            wait_until_open(where)
            assert reached_in(where).is_between
            assert len(shown(where)) == 9
            with pytest.raises(SearchIndexFailed, match="and some later ones"):
                compared(where)
            follow(held, where)
            check_equal(held, where)
    finally:
        node.kill()


def wait_until_open(where: Cluster) -> None:
    wait_for("the index's shard", lambda: where.ask("GET", "/_cluster/health").document["status"] != "red")  # type: ignore[index]


def test_an_index_between_two_cuts_when_the_lake_has_nothing_later_then_it_is_built_anew(
    held: Lake, where: Cluster
) -> None:
    follow(held, where)
    former, reached = which(where), reached_in(where)
    writes = engine_of(where).output(ID, reached.definition, reached)
    writes.upsert([Entry("b" * 32, {"id": 70}, {}, gsn=1000)])
    writes._bulk.flush()  # type: ignore[attr-defined]
    writes.close()
    refresh(where)
    assert reached_in(where).is_between
    follow(held, where)
    assert which(where) != former
    check_equal(held, where)


def test_an_index_when_somebody_removes_it_beside_its_process_then_the_run_ends_and_the_next_one_builds_it(
    held: Lake, where: Cluster
) -> None:
    engine = engine_of(where)
    for is_open in (False, True):
        follow(held, where)
        follower = Follower(str(held.folder), engine, [ID])
        if is_open:
            held.cut((ORDERS, [insert(**row(60))]))
            assert follower.turn()
        where.ask("DELETE", f"/{Indexes(where, ID).live()}")
        held.cut((ORDERS, [insert(**row(61 + is_open))]))
        with pytest.raises(SearchIndexFailed, match="removed"):
            follower.turn()
        follower.close()
        follow(held, where)
        check_equal(held, where)


def test_a_reader_when_indexes_are_built_anew_beside_it_then_it_always_has_the_rows_of_one_cut(
    held: Lake, where: Cluster
) -> None:
    follow(held, where)
    seen, done = [0], threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            with closing(Cluster(str(where), prefix=where.prefix)) as own:
                while not done.is_set() or seen[0] < 5:
                    index = open_search(own, ID)
                    found = index.ask(Search(limit=1000, timeout_seconds=300))
                    assert found.total == 9 + (index.reached.cut - 1) // 2
                    seen[0] += 1
        except BaseException as failure:  # noqa: BLE001  (looked at below)
            failures.append(failure)

    reader = threading.Thread(target=read)
    reader.start()
    columns = dict(ORDERS.columns)
    for number in range(5):
        columns |= {f"more{number}": ORDERS.columns["note"]}
        wider = Table("orders", columns)
        held.writer.cut(altered(wider))
        values = {name: None for name in columns if name.startswith("more")}
        held.writer.cut((wider, [insert(**row(50 + number), **values)]))
        held.follow()
        follow(held, where)
    done.set()
    reader.join(300)
    assert not failures
    assert seen[0] >= 5
