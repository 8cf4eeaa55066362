"""An object store of this machine for tests: s3proxy, which speaks S3 over a folder.

`python -m tests.object_store` fetches it from Maven Central into .servers/s3proxy. It takes a free port when it starts
and logs which. Clients come through a door that keeps its port, so that they find a server again which was stopped and
started. A bucket is a folder of the server's.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyspark

from spark_sink.errors import SinkError
from spark_sink.jars import SETTINGS, find_java
from tests.e2e.balancer import Balancer
from tests.needs import needs_setup
from tests.servers import SERVERS, ServerMissing

VERSION = "4.1.0"
JAR = SERVERS / "s3proxy" / f"s3proxy-{VERSION}.jar"
FETCH_SECONDS = 300
START_SECONDS = 300
BUCKET = "menura-tests"
IDENTITY, CREDENTIAL = "menura", "a-secret-of-tests"
#: where the options below say that the secret stands
SECRET_VARIABLE = "MENURA_TEST_S3_SECRET"
#: a jar with all that it needs, which has a classifier; ivy's command line knows none
IVY = f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="menura" module="tests"/>
  <dependencies>
    <dependency org="org.gaul" name="s3proxy" rev="{VERSION}" transitive="false">
      <artifact name="s3proxy" type="jar" ext="jar" m:classifier="jar-with-dependencies"/>
    </dependency>
  </dependencies>
</ivy-module>
"""
PROPERTIES = f"""s3proxy.endpoint=http://127.0.0.1:0
s3proxy.authorization=aws-v2-or-v4
s3proxy.identity={IDENTITY}
s3proxy.credential={CREDENTIAL}
jclouds.provider=filesystem-nio2
jclouds.filesystem.basedir={{folder}}
"""
_BOUND = re.compile(r"Started \S*ServerConnector@.*\{127\.0\.0\.1:(\d+)\}")


class S3Proxy:
    """A running server with one bucket."""

    def __init__(self, folder: Path) -> None:
        needs_setup("an object store")
        if not JAR.is_file():
            raise ServerMissing("no s3proxy on this machine: run .ci/setup s3proxy")
        self._folder = folder
        (folder / "data" / BUCKET).mkdir(parents=True)
        (folder / "s3proxy.properties").write_text(PROPERTIES.format(folder=folder / "data"))
        self._process: subprocess.Popen[bytes] | None = None
        self._door = Balancer()
        self._door.__enter__()
        self.endpoint = f"http://{self._door.address}"
        self.url = f"s3://{BUCKET}"
        os.environ[SECRET_VARIABLE] = CREDENTIAL
        self.start()

    def options(self, **others: str) -> list[str]:
        """What `--storage-option` is given."""
        named = {
            "aws_endpoint": self.endpoint,
            "aws_region": "us-east-1",
            "allow_http": "true",
            "aws_access_key_id": IDENTITY,
            "aws_secret_access_key": f"env:{SECRET_VARIABLE}",
            **others,
        }
        return [f"{key}={value}" for key, value in named.items()]

    def start(self) -> None:
        log = self._folder / "s3proxy.log"
        options = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        command = [find_java(), *options, "-jar", str(JAR), "--properties", str(self._folder / "s3proxy.properties")]
        with log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        deadline = time.monotonic() + START_SECONDS
        while not (bound := _BOUND.search(log.read_text(errors="replace"))):
            assert self._process.poll() is None, log.read_text(errors="replace")[-2000:]
            assert time.monotonic() < deadline, "s3proxy does not start"
            time.sleep(0.05)
        self._door.lead_to(int(bound[1]))

    def stop(self) -> None:
        """Whoever comes now is refused, until it is started again."""
        self._door.lead_to()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.stop()
        self._door.__exit__()


def fetch() -> Path:
    """The server's jar, fetched if it is not there."""
    if JAR.is_file():
        return JAR
    JAR.parent.mkdir(parents=True, exist_ok=True)
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    with tempfile.TemporaryDirectory(dir=JAR.parent) as scratch:
        (Path(scratch) / "settings.xml").write_text(SETTINGS.format(cache=Path(scratch) / "cache"))
        (Path(scratch) / "ivy.xml").write_text(IVY)
        command = [find_java(), "-cp", str(ivy), "org.apache.ivy.Main", "-settings", f"{scratch}/settings.xml"]
        command += ["-ivy", f"{scratch}/ivy.xml", "-types", "jar", "-retrieve", f"{scratch}/[artifact].[ext]"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
        jar = Path(scratch) / "s3proxy.jar"
        if ran.returncode or not jar.is_file():
            raise SystemExit(f"ivy did not fetch s3proxy: {(ran.stdout + ran.stderr)[-1000:]}")
        jar.rename(JAR)
    return JAR


def main() -> int:
    try:
        fetch()
    except SinkError as failure:
        print(failure, file=sys.stderr)
        return failure.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
