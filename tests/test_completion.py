"""`menura completion`: what bash offers after words of `menura`."""

import shutil
import subprocess
from functools import cache

import pytest

from tests.controlplane_api.commands import menura


@cache
def script() -> str:
    return menura("completion", "bash").stdout


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("menura ", {"agent", "doctor", "status", "sync", "why", "completion"}),
        ("menura stat", {"status"}),
        ("menura sync s", {"start", "stop"}),
        ("menura sync start shop --fr", {"--from"}),
        ("menura status --out", {"--output"}),
        ("menura agent ch", {"check"}),
        ("menura agent policy test --t", {"--table"}),
        ("menura doctor --la", {"--landing", "--lake"}),
        ("menura sink run --land", {"--landing"}),
    ],
)
def test_bash_when_a_line_has_begun_then_offers_what_may_follow(line: str, offered: set[str]):
    bash = shutil.which("bash")
    assert bash is not None
    words = line.split(" ")
    ask = (
        f"{script()}\nCOMP_WORDS=({' '.join(repr(word) for word in words)}) COMP_CWORD={len(words) - 1}\n"
        '_menura_words; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run([bash, "--norc", "-c", ask], capture_output=True, text=True, check=True)
    found = set(done.stdout.split())
    assert found == offered if line != "menura " else offered <= found, done.stderr


def test_zsh_when_asked_for_then_takes_the_same_script():
    assert menura("completion", "zsh").stdout.endswith(script())
    assert menura("completion", "tcsh").returncode == 2
