"""A Kafka broker of this machine for tests, one node that is its own controller.

`python -m tests.kafka_broker` fetches it from Maven Central into .servers/kafka.
"""

import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pyspark
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from spark_sink.errors import SinkError
from spark_sink.jars import SETTINGS, find_java
from tests.needs import needs_setup
from tests.servers import SERVERS, ServerMissing, free_port

VERSION = "4.3.1"
FOLDER = SERVERS / "kafka" / VERSION
FETCH_SECONDS = 600
START_SECONDS = 300
IVY = f"""<ivy-module version="2.0">
  <info organisation="menura" module="tests"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{VERSION}" conf="default->master,runtime"/>
  </dependencies>
</ivy-module>
"""
PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
offsets.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
transaction.abort.timed.out.transaction.cleanup.interval.ms=200
"""


class KafkaBroker:
    """A running broker."""

    def __init__(self, folder: Path) -> None:
        needs_setup("a Kafka broker")
        if not FOLDER.is_dir():
            raise ServerMissing("no Kafka on this machine: run .ci/setup kafka")
        port, controller = free_port(), free_port()
        self.servers = f"127.0.0.1:{port}"
        properties = folder / "kafka.properties"
        properties.write_text(PROPERTIES.format(port=port, controller=controller, folder=folder / "log"))
        java = [find_java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{FOLDER}/*"]
        with (folder / "kafka.log").open("wb") as output:
            formatted = [*java, "kafka.tools.StorageTool", "format", "-t", str(uuid.uuid4()), "-c", str(properties)]
            subprocess.run(formatted, stdout=output, stderr=output, check=True)
            command = [*java, "kafka.Kafka", str(properties)]
            self._process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            log = (folder / "kafka.log").read_text(errors="replace")[-2000:]
            assert self._process.poll() is None and time.monotonic() < deadline, log

    def _answers(self) -> bool:
        try:
            return bool(AdminClient({"bootstrap.servers": self.servers, "log_level": 0}).list_topics(timeout=2).brokers)
        except KafkaException:
            return False

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def fetch() -> None:
    """Its jars, if they are not there."""
    if FOLDER.is_dir():
        return
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    with tempfile.TemporaryDirectory(dir=FOLDER.parent) as name:
        scratch = Path(name)
        (scratch / "settings.xml").write_text(SETTINGS.format(cache=scratch / "cache"))
        (scratch / "ivy.xml").write_text(IVY)
        command = [find_java(), "-cp", str(ivy), "org.apache.ivy.Main", "-settings", str(scratch / "settings.xml")]
        command += ["-ivy", str(scratch / "ivy.xml"), "-retrieve", f"{scratch}/jars/[artifact]-[revision].[ext]"]
        command += ["-types", "jar", "bundle"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
        if ran.returncode or not list(scratch.glob("jars/kafka_2.13-*.jar")):
            raise SystemExit(f"ivy did not fetch Kafka: {(ran.stdout + ran.stderr)[-1000:]}")
        (scratch / "jars").rename(FOLDER)


def main() -> int:
    try:
        fetch()
    except SinkError as failure:
        print(failure, file=sys.stderr)
        return failure.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
