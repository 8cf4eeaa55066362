"""What a running agent has imported: it keeps all of it, so what an idle one does not need is not there."""

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from menura.distributions import entry_points, version

from tests.servers import ROOT

#: packages, and parts of them, by what would bring them; DECISIONS 249 says what each takes
UNNEEDED = {
    "enrolment and logins without TLS": ("cryptography", "agent.private_key", "agent.enrolment", "http.client"),
    "columns of other libraries, and the first batch": ("nanoarrow",),
    "what reads dumps": ("agent.sources.mysql.snapshot.reading", "agent.sources.postgresql.snapshot.reading"),
    "libraries that import more than they use": ("asyncio", "grpc.aio", "google.protobuf.internal.python_message"),
    "other commands": ("agent.doctor", "menura.doctor", "email", "zipfile"),
    "windows": ("zoneinfo",),
    "the receiving side": ("pyarrow", "gateway", "controlplane_api", "spark_sink"),
}
#: of the other kind
OTHERS = {"mysql": ("agent.sources.postgresql", "pg8000"), "postgresql": ("agent.sources.mysql", "pymysql", "sqlite3")}
#: pg8000 has time zones, and asks for its own version
NEEDED = {"mysql": (), "postgresql": ("email", "zipfile", "zoneinfo")}


def python(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", ["mysql", "postgresql"])
def test_agent_when_it_has_its_kind_of_source_then_keeps_nothing_that_an_idle_one_does_not_need(kind: str) -> None:
    script = f"""
import json, sys
import menura.cli, agent.cli
from agent.source_kind import find_kind
find_kind({kind!r})
print(json.dumps(list(sys.modules)))
"""
    found = set(json.loads(python(script)))
    unneeded = {name for names in UNNEEDED.values() for name in names} | set(OTHERS[kind])
    assert sorted(found & unneeded) == sorted(NEEDED[kind])


def test_library_when_the_agent_has_left_out_a_part_then_that_part_works_for_whoever_uses_it() -> None:
    script = """
import agent.cli
import asyncio, grpc
from google.protobuf.internal import builder

async def dial():
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        try:
            await channel.unary_unary("/a/b")(b"")
        except grpc.aio.AioRpcError as refused:
            print(refused.code().name)

asyncio.run(dial())
assert builder.python_message.GeneratedProtocolMessageType
"""
    assert python(script).split() == ["UNAVAILABLE"]


@pytest.mark.parametrize("missing", ["cryptography", "nanoarrow"])
def test_agent_when_a_package_is_missing_that_it_imports_later_then_says_so_at_the_start(missing: str) -> None:
    script = f"""
import sys
sys.modules[{missing!r}] = None
from menura.cli import main
sys.argv = ["menura", "agent", "grants", "--flavor", "mysql"]
print(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "2\n"
    assert f"the package {missing} is not installed; install menura[agent]" in done.stderr


def test_distributions_when_they_are_asked_for_then_are_those_of_the_standard_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        "first/a_B-1.0.dist-info": "[menura.sources]\n# no entry\nkafka = k:kind.of [extra]\n\n[other]\nx = y\n",
        "first/second-2.0.egg-info": "[menura.sources]\nfile=f.g\n",
        "second/a.b-2.0.dist-info": "[menura.sources]\nshadowed = s\n",
    }
    for folder, text in texts.items():
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "entry_points.txt").write_text(text)
        name, number = Path(folder).stem.split("-")
        file = "PKG-INFO" if folder.endswith("egg-info") else "METADATA"
        (tmp_path / folder / file).write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n\nVersion: no")
    monkeypatch.syspath_prepend(tmp_path / "second")
    monkeypatch.syspath_prepend(tmp_path / "first")
    wanted = {group: {(point.name, point.module, point.attr or "") for point in metadata.entry_points(group=group)}
              for group in metadata.entry_points().groups}  # fmt: skip
    assert ("kafka", "k", "kind.of") in wanted["menura.sources"]
    for group, points in wanted.items():
        assert {(point.name, point.module, point.attribute) for point in entry_points(group)} == points
    assert [point.module for point in entry_points("menura.sources", "file")] == ["f.g"]
    names = {found.name for found in metadata.distributions()}
    assert {name: version(name) for name in names} == {name: metadata.version(name) for name in names}
    with pytest.raises(LookupError, match="not installed"):
        version("menura-of-nobody")
