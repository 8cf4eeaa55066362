"""An agent that rests gives code back that only its start has run; DECISIONS 316."""

import subprocess
import sys

from tests.servers import ROOT

#: of gRPC's code alone, a third of which is run again
LEAST_GIVEN_KIB = 4_096

SCRIPT = """
import re
import agent.cli, grpc
from agent.sources.mysql import kind
from menura.allocator import give_code_back
from pathlib import Path

def resident(rights):
    areas = re.split(r"^(?=[0-9a-f]+-)", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)[1:]
    named = [area for area in areas if area.split()[1] == rights and area.split()[4] != "0"]
    return sum(int(re.search(r"^Rss: +([0-9]+)", area, re.MULTILINE)[1]) for area in named)

def dial():
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        try:
            channel.unary_unary("/a/b")(b"")
        except grpc.RpcError as refused:
            return refused.code().name

def figures():
    return resident("r-xp"), resident("rw-p")

before = dial(), *figures()
give_code_back()
after = figures()
print(*before, *after, dial())
"""


def test_code_when_it_is_given_back_then_is_resident_no_more_and_runs_all_the_same() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    dialled, code, data, code_left, data_left, dialled_again = done.stdout.split()
    assert dialled == dialled_again == "UNAVAILABLE"
    assert int(code) - int(code_left) >= LEAST_GIVEN_KIB, done.stdout
    assert int(data_left) >= int(data), "what was written to stays"
