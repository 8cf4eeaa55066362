"""A sink on a Spark cluster: a master and two workers that share nothing but an object store; one is killed."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyspark
import pytest
from deltalake import DeltaTable
from menura.stores.opening import open_store
from menura.stores.options import delta_options, parse, use

from spark_sink.jars import find_java
from spark_sink.reading import current_state
from spark_sink.work import TableId
from tests.needs import needs_setup
from tests.object_store import S3Proxy
from tests.spark_sink.landing import Table, Values, Workload, Writer, table_id
from tests.stack import Process, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.long]

TENANTS = ("acme", "beta", "corp")
OPTIONS = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@contextmanager
def cluster_process(
    folder: Path, name: str, program: str, *arguments: str
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A process of Spark's in a session of its own, with its executors, and its log."""
    needs_setup("a Spark cluster")
    home = Path(pyspark.__file__).parent
    log = folder / f"{name}.log"
    environment = {"SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13", "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [find_java(), *OPTIONS, "-cp", f"{home}/jars/*", f"org.apache.spark.deploy.{program}", *arguments]
    with log.open("wb") as output:
        running = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
            cwd=folder,
            start_new_session=True,
        )
    try:
        yield running, log
    finally:
        kill(running)


def kill(process: subprocess.Popen[bytes]) -> None:
    """-9, with the executors that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def land(writer: Writer, url: str, done: set[str]) -> None:
    """What the writer has written, into the object store: the files first, then the entries in order."""
    store = open_store(url)
    files = sorted(str(path.relative_to(writer.folder)) for path in writer.folder.rglob("*") if path.is_file())
    for path in sorted(set(files) - done, key=lambda path: (path.startswith("log/"), path)):
        assert store.put_if_absent(path, (writer.folder / path).read_bytes())
        done.add(path)


def rows_of(lake: str, table: Table, tenant: str) -> list[Values]:
    rows = current_state(lake, table_id(table, tenant)).to_pylist()
    return sorted(({name: row[name] for name in table.columns} for row in rows), key=repr)


def test_sink_on_two_workers_when_one_is_killed_then_the_lake_in_the_object_store_has_each_row_once(
    tmp_path: Path,
) -> None:
    workloads = {tenant: Workload(seed) for seed, tenant in enumerate(TENANTS)}
    writer = Writer(tmp_path / "landing")
    landed: set[str] = set()
    with ExitStack() as ends:
        proxy = S3Proxy(tmp_path / "store")
        ends.callback(proxy.close)
        use(parse(proxy.options(), {}))
        ends.callback(use, parse(()))
        landing, lake = f"{proxy.url}/landing", f"{proxy.url}/lake"

        def land_cuts(cuts: int) -> None:
            for _ in range(cuts):
                for tenant, workload in workloads.items():
                    workload.cut(writer, tenant)
            land(writer, landing, landed)

        land_cuts(10)
        place = ("--host", "127.0.0.1", "--webui-port", "0")
        master, log = ends.enter_context(cluster_process(tmp_path, "master", "master.Master", *place, "--port", "0"))

        def address() -> re.Match[str] | None:
            assert master.poll() is None, log.read_text()
            return re.search(r"Starting Spark master at (spark://\S+)", log.read_text())

        found = wait_for("the master", address)
        workers = []
        for name in ("work-1", "work-2"):
            size = ("--cores", "1", "--memory", "700m", "--work-dir", str(tmp_path / name))
            started = cluster_process(tmp_path, f"{name}er", "worker.Worker", *place, *size, found[1])
            workers.append(ends.enter_context(started))
        wait_for("the workers", lambda: all("Successfully registered" in each.read_text() for _, each in workers))
        conf = ("spark.driver.host=127.0.0.1", "spark.executor.memory=512m", "spark.executor.cores=1")
        sink = Process(
            ["sink", "run", "--landing", landing, "--lake", lake, "--master", found[1],
             *(f"--conf={word}" for word in conf), *(f"--storage-option={word}" for word in proxy.options())],
            tmp_path / "sink.log",
        )  # fmt: skip
        ends.enter_context(sink)

        def applied(batches: int) -> bool:
            assert sink.is_running(), sink.tail()
            return sink.log.read_text().count("batch applied") >= batches

        wait_for("a batch", lambda: applied(1), 600)
        wait_for("both executors", lambda: all(list((tmp_path / f"work-{n}").glob("app-*/*/stderr")) for n in (1, 2)))
        land_cuts(10)
        kill(workers[0][0])
        land_cuts(10)

        def equal(tenant: str) -> bool:
            orders, events = workloads[tenant].orders.expected(), workloads[tenant].events.expected()
            return (rows_of(lake, Workload.ORDERS, tenant), rows_of(lake, Workload.EVENTS, tenant)) == (orders, events)

        for tenant in TENANTS:
            wait_for(f"{tenant}'s rows", lambda of=tenant: equal(of), 600)
            changelog = f"{TableId(tenant, 'shop', 'shop', 'orders').folder(lake)}/changelog"
            numbers = (
                DeltaTable(changelog, storage_options=delta_options(changelog)).to_pyarrow_table()["_gsn"].to_pylist()
            )
            assert len(set(numbers)) == len(numbers)
        assert "table stopped" not in sink.log.read_text()
        assert not (tmp_path / "lake").exists()
