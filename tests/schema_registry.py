"""A schema registry of this machine for tests, Apicurio, its Java converters, and Debezium's own readers.

`python -m tests.schema_registry` fetches them from Maven Central into .servers/registry and .servers/debezium. The
server has the REST interface of Confluent's at `url`. The converters are those that a Kafka Connect worker reads and
writes Debezium's messages in Avro with. Debezium's readers are what its users have in their consumers: a
deserialiser for Kafka Streams, and the transformation that sink connectors are configured with. `java` starts a Java
that has all of them.
"""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from spark_sink.errors import SinkError
from spark_sink.jars import SETTINGS, find_java
from tests.needs import needs_setup
from tests.servers import SERVERS, ServerMissing, free_port

#: the last one that runs on Java 17
VERSION = "2.6.13.Final"
FOLDER = SERVERS / "registry" / VERSION
#: the last one that is made for the Kafka Connect that the converters bring
DEBEZIUM_VERSION = "3.0.8.Final"
DEBEZIUM = SERVERS / "debezium" / DEBEZIUM_VERSION
FETCH_SECONDS = 600
START_SECONDS = 300
JAVA_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
CONVERTERS = "io.apicurio.registry.utils.converter"
IVY = f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="menura" module="tests"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="io.apicurio" name="apicurio-registry-utils-converter" rev="{VERSION}"
      conf="default->master,runtime"/>
    <dependency org="io.apicurio" name="apicurio-registry-app" rev="{VERSION}" transitive="false">
      <artifact name="apicurio-registry-app" type="tar.gz" ext="tar.gz" m:classifier="all"/>
    </dependency>
  </dependencies>
</ivy-module>
"""
DEBEZIUM_IVY = f"""<ivy-module version="2.0">
  <info organisation="menura" module="tests"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="io.debezium" name="debezium-core" rev="{DEBEZIUM_VERSION}" transitive="false"/>
    <dependency org="io.debezium" name="debezium-api" rev="{DEBEZIUM_VERSION}" transitive="false"/>
    <dependency org="org.apache.kafka" name="connect-transforms" rev="3.9.0" transitive="false"/>
    <dependency org="com.fasterxml.jackson.datatype" name="jackson-datatype-jsr310" rev="2.17.2" transitive="false"/>
  </dependencies>
</ivy-module>
"""


class SchemaRegistry:
    """A running server."""

    def __init__(self, folder: Path) -> None:
        needs_setup("a schema registry")
        if not FOLDER.is_dir():
            raise ServerMissing("no schema registry on this machine: run .ci/setup registry")
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        runner = next((FOLDER / "server").glob("*-runner.jar"))
        environment = {**os.environ, "QUARKUS_HTTP_HOST": "127.0.0.1", "QUARKUS_HTTP_PORT": str(port)}
        log = folder / "registry.log"
        with log.open("wb") as output:
            command = [find_java(), *JAVA_OPTIONS, "-jar", str(runner)]
            self._process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder, env=environment)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._process.poll() is None and time.monotonic() < deadline, log.read_text(errors="replace")[-2000:]
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            return isinstance(self.get("/subjects"), list)
        except OSError:
            return False

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return json.load(answer)

    def set_compatibility(self, level: str, subject: str = "") -> None:
        """Without a subject: of all that have none of their own."""
        body = json.dumps({"compatibility": level}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/config{subject and '/'}{subject}", body, headers, method="PUT")
        urllib.request.urlopen(request, timeout=60).close()

    def versions(self, subject: str) -> list[dict[str, Any]]:
        """Its schemas with their ids, the first one first."""
        found = [self.get(f"/subjects/{subject}/versions/{each}") for each in self.get(f"/subjects/{subject}/versions")]
        return [{"id": each["id"], "schema": json.loads(each["schema"])} for each in found]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def java() -> Iterator[JavaGateway]:
    """One with the converters and Debezium's readers."""
    needs_setup("Java")
    if not (FOLDER.is_dir() and DEBEZIUM.is_dir()):
        raise ServerMissing("no converters or no Debezium on this machine: run .ci/setup registry")
    py4j = next((Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar"))
    port, process = launch_gateway(
        classpath=f"{FOLDER}/converters/*:{DEBEZIUM}/*",
        jarpath=str(py4j),
        javaopts=list(JAVA_OPTIONS),
        java_path=find_java(),
        die_on_exit=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    try:
        yield gateway
    finally:
        gateway.close()
        process.kill()
        process.wait()
        process.stdin.close()


def fetch() -> None:
    """What is not there."""
    if not FOLDER.is_dir():
        _fetch_registry()
    if not DEBEZIUM.is_dir():
        with _scratch(DEBEZIUM) as scratch:
            _retrieve(scratch, DEBEZIUM_IVY)
            (scratch / "all").rename(DEBEZIUM)


def _fetch_registry() -> None:
    with _scratch(FOLDER) as scratch:
        _retrieve(scratch, IVY)
        archives = list((scratch / "all").glob("*.tar.gz"))
        if len(archives) != 1:
            raise SystemExit(f"ivy fetched {len(archives)} archives of the registry, and not 1")
        whole = scratch / "registry"
        with tarfile.open(archives[0]) as archive:
            archive.extractall(whole / "server", filter="data")
        archives[0].unlink()
        (scratch / "all").rename(whole / "converters")
        whole.rename(FOLDER)


@contextmanager
def _scratch(beside: Path) -> Iterator[Path]:
    beside.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=beside.parent) as name:
        yield Path(name)


def _retrieve(scratch: Path, module: str) -> None:
    """All files of the module's dependencies, into SCRATCH/all."""
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    (scratch / "settings.xml").write_text(SETTINGS.format(cache=scratch / "cache"))
    (scratch / "ivy.xml").write_text(module)
    command = [find_java(), "-cp", str(ivy), "org.apache.ivy.Main", "-settings", str(scratch / "settings.xml")]
    command += ["-ivy", str(scratch / "ivy.xml"), "-types", "jar", "bundle", "tar.gz"]
    command += ["-retrieve", f"{scratch}/all/[artifact]-[revision].[ext]"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    if ran.returncode or not (scratch / "all").is_dir():
        raise SystemExit(f"ivy did not fetch what tests need: {(ran.stdout + ran.stderr)[-1000:]}")


def main() -> int:
    try:
        fetch()
    except SinkError as failure:
        print(failure, file=sys.stderr)
        return failure.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
