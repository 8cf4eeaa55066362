"""What holds for each store: a folder, an object store, a file system of fsspec's."""

import multiprocessing
import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from menura.stores.opening import open_store
from menura.stores.options import StorageOptions, current, delta_options, parse, use
from menura.stores.store import OutcomeUnknown, Store, StoreFailed

from spark_sink.lake.delta_table import Layout, append, create_table, open_again, remember_table
from spark_sink.lake.known_table import KnownTable
from tests.object_store import S3Proxy

KINDS = ["folder", "fsspec", pytest.param("s3", marks=pytest.mark.needs_setup)]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, StorageOptions]:
    if request.param == "s3":
        proxy: S3Proxy = request.getfixturevalue("object_store")
        return f"{proxy.url}/{secrets.token_hex(8)}/landing", parse(proxy.options(), {})
    url = str(tmp_path / "landing") if request.param == "folder" else f"memory://{tmp_path}/landing"
    return url, StorageOptions()


@pytest.fixture
def store(place: tuple[str, StorageOptions]) -> Store:
    return open_store(*place)


def test_document_when_put_once_then_it_is_read_and_never_replaced(store: Store):
    assert store.read("log/1.json") is None
    assert store.find("log/1.json") is None
    assert store.put_if_absent("log/1.json", b"first")
    assert not store.put_if_absent("log/1.json", b"second")
    assert (store.read("log/1.json"), store.read("log/1.json", most_bytes=2)) == (b"first", b"fi")
    found = store.find("log/1.json")
    assert found is not None
    assert (found.path, found.size_bytes, found.modified_us > 1_700_000_000_000_000) == ("log/1.json", 5, True)


def test_document_when_put_again_then_the_last_one_is_there(store: Store):
    store.put("offset.json", b"a long first one")
    store.put("offset.json", b"second")
    assert store.read("offset.json") == b"second"


def test_files_when_listed_then_all_below_the_folder_are_there_until_they_are_deleted(store: Store):
    names = {"data/order%20lines/1.parquet", "data/orders/~2.parquet", "data/orders/dump-1/3.parquet"}
    assert list(store.list("data")) == []
    for name in [*names, "data-of-others/4.parquet"]:
        store.put(name, b"rows")
    assert {found.path for found in store.list("data")} == names
    store.delete(["data/orders/~2.parquet", "data/orders/never-there"])
    assert {found.path for found in store.list("data")} == names - {"data/orders/~2.parquet"}


@pytest.mark.parametrize("rows", [10, 1_500_000])
def test_data_file_when_written_by_row_groups_then_each_is_read_back(store: Store, rows: int):
    groups = [pa.table({"id": pa.array(range(first, first + rows))}) for first in (0, rows)]
    output = store.create("data/file.parquet")
    with pq.ParquetWriter(output, groups[0].schema, compression="none", use_dictionary=False) as writer:
        for group in groups:
            writer.write_table(group, row_group_size=rows)
    size_bytes = output.tell()
    output.close()
    store.make_durable(["data/file.parquet"])
    found = store.find("data/file.parquet")
    assert found is not None
    assert found.size_bytes == size_bytes
    with store.open("data/file.parquet") as file:
        parquet = pq.ParquetFile(file)
        assert [parquet.read_row_group(number) for number in (0, 1)] == groups


def test_data_file_when_discarded_then_it_is_not_there(store: Store):
    for is_closed in (False, True):
        output = store.create("data/file")
        output.write(b"x" * (6 << 20))
        if is_closed:
            output.close()
        store.discard("data/file", None if is_closed else output)
        assert store.find("data/file") is None
    with pytest.raises(FileNotFoundError):
        store.open("data/file")


def contend(place: tuple[str, StorageOptions], writer: int, documents: int) -> list[int]:
    """Of which documents this writer was the one."""
    store, own, won = open_store(*place), str(writer).encode(), []
    for each in range(documents):
        try:
            is_first = store.put_if_absent(f"log/{each}", own)
        except OutcomeUnknown:
            is_first = False
        # a put whose answer was lost is tried again by the client, and finds itself there
        if is_first or store.read(f"log/{each}") == own:
            won.append(each)
    return won


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "fsspec"])
def test_put_if_absent_when_processes_and_threads_race_then_each_document_has_one_winner(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
):
    place = str(tmp_path), StorageOptions()
    if kind == "s3":
        proxy: S3Proxy = request.getfixturevalue("object_store")
        place = f"{proxy.url}/{secrets.token_hex(8)}", parse(proxy.options(), {})
    documents = 20
    with (
        multiprocessing.get_context("spawn").Pool(2) as processes,
        ThreadPoolExecutor(4) as threads,
    ):
        others = [processes.apply_async(contend, (place, writer, documents)) for writer in (1, 2)]
        own = [threads.submit(contend, place, writer, documents) for writer in (3, 4, 5, 6)]
        won = dict(enumerate([*(each.get(300) for each in others), *(each.result(300) for each in own)], start=1))
    assert sorted(each for mine in won.values() for each in mine) == list(range(documents))
    store = open_store(*place)
    assert all(store.read(f"log/{each}") == str(writer).encode() for writer, mine in won.items() for each in mine)


@pytest.mark.needs_setup
def test_object_store_when_it_refuses_then_its_word_is_the_reason_and_no_absence(object_store: S3Proxy):
    wrong = parse(object_store.options(aws_secret_access_key="env:MENURA_TEST_S3_WRONG"), {})
    os.environ["MENURA_TEST_S3_WRONG"] = "wrong"
    refused = open_store(f"{object_store.url}/landing", wrong)
    no_bucket = open_store("s3://no-such-bucket/landing", parse(object_store.options(), {}))
    for store, reason in ((refused, "SignatureDoesNotMatch"), (no_bucket, "NoSuchBucket")):
        asks = [
            partial(store.read, "log/1.json"),
            partial(store.find, "log/1.json"),
            partial(store.put_if_absent, "log/1.json", b"x"),
            partial(next, store.list("log")),
        ]
        for ask in asks:
            with pytest.raises(StoreFailed) as failed:
                ask()
            assert failed.value.reason == reason


@pytest.mark.needs_setup
def test_object_store_when_it_is_away_then_a_put_has_no_outcome_and_all_goes_on_once_it_is_back(tmp_path: Path):
    proxy = S3Proxy(tmp_path)
    try:
        store = open_store(f"{proxy.url}/landing", parse(proxy.options(max_retries="1"), {}))
        assert store.put_if_absent("log/1.json", b"1")
        proxy.stop()
        with pytest.raises(StoreFailed, match="UNREACHABLE"):
            store.read("log/1.json")
        with pytest.raises(OutcomeUnknown, match="UNREACHABLE"):
            store.put_if_absent("log/2.json", b"2")
        proxy.start()
        assert store.read("log/1.json") == b"1"
        assert store.put_if_absent("log/2.json", b"2")
    finally:
        proxy.close()


@pytest.mark.needs_setup
def test_delta_table_when_its_folder_has_an_escaped_name_then_the_store_finds_what_delta_rs_wrote(
    object_store: S3Proxy,
):
    before = current()
    use(parse(object_store.options(), {}))
    try:
        url = f"{object_store.url}/{secrets.token_hex(8)}/order~20lines/current"
        write_deltalake(url, pa.table({"id": [1]}), storage_options=delta_options(url))
        assert open_store(url).find(f"_delta_log/{0:020d}.json") is not None
        assert DeltaTable(url, storage_options=delta_options(url)).version() == 0
    finally:
        use(before)


@pytest.mark.needs_setup
def test_small_table_when_it_lies_in_an_object_store_then_delta_rs_writes_it(object_store: S3Proxy):
    """There is no link that has one winner there, and no inode that tells copies apart."""
    use(parse(object_store.options(), {}))
    folder = f"{object_store.url}/{secrets.token_hex(8)}/t"
    try:
        table = create_table(folder, pa.schema([("id", pa.int64())]), Layout("", ("id",), ("id",)))
        remember_table(folder, table, "acme/shop")
        opened = open_again(folder, "acme/shop")
        assert opened is not None and not isinstance(opened, KnownTable)
        append(opened, pa.table({"id": [1]}), [("acme/shop", 1)])
        assert opened.version() == 1
    finally:
        use(StorageOptions())
