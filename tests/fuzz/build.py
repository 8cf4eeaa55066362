"""The compiled core with red zones and edge coverage, in a folder of its own: build/fuzz.

Comes in: the C files that the normal build left beside their .pyx. gcc alone is enough. `environment` is what a
process needs that imports it.
"""

import hashlib
import os
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.servers import ROOT

FOLDER = ROOT / "build" / "fuzz"
#: packages with compiled modules, by their folder in FOLDER
PACKAGES = {
    "agent.columnar": ROOT / "agent" / "columnar",
    "agent.sources.mysql.native": ROOT / "agent" / "sources" / "mysql" / "native",
    "agent.sources.postgresql.native": ROOT / "agent" / "sources" / "postgresql" / "native",
}
CONTRACT = ROOT / "proto" / "menura"
#: more than any event of ours needs: a length that was only announced must not become an allocation
MOST_ALLOCATION_MIB = 96
MOST_MEMORY_MIB = 3072

_FLAGS = ("-shared", "-fPIC", "-O1", "-g1", "-fno-strict-aliasing", "-fwrapv", "-fno-omit-frame-pointer")
_SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fsanitize-coverage=trace-pc")
_ASAN_OPTIONS = {
    "detect_leaks": "0",  # of Python's own objects
    "allocator_may_return_null": "0",
    "max_allocation_size_mb": str(MOST_ALLOCATION_MIB),
    "hard_rss_limit_mb": str(MOST_MEMORY_MIB),
    "quarantine_size_mb": "32",
    "handle_abort": "1",
    "exitcode": "99",
}


#: the decoder's buffers begin small here: their growth is fuzzed too, and a new decoder per input is cheap
_SMALLER = {"received_RESTING_BYTES = (1 << 20)": "(96 << 10)", "inner_PORTION_BYTES = (1 << 20)": "(64 << 10)"}


def build() -> None:
    """Compile what has changed."""
    for package in PACKAGES:
        (FOLDER / package).mkdir(parents=True, exist_ok=True)
    coverage = Path(__file__).with_name("coverage.c")
    with ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(_compile, FOLDER / package / source.name, _smaller(source), _core(package, source), _SANITIZERS)
            for package, folder in PACKAGES.items()
            for source in sorted(path.with_suffix(".c") for path in folder.glob("*.pyx"))
        ]
        coverage_object = FOLDER / "coverage.so"
        jobs.append(pool.submit(_compile, FOLDER / coverage.name, coverage.read_text(), coverage_object, ("-O3",)))
        for job in jobs:
            job.result()


def _core(package: str, source: Path) -> Path:
    return FOLDER / package / f"{source.stem}{sysconfig.get_config_var('EXT_SUFFIX')}"


def _smaller(source: Path) -> str:
    text = source.read_text()
    for constant, value in _SMALLER.items():
        text = text.replace(constant, f"{constant.partition('=')[0]}= {value}")
    return text


def _compile(source: Path, text: str, library: Path, more: tuple[str, ...]) -> None:
    folders = (*PACKAGES.values(), CONTRACT)
    inputs = [
        path.read_text() for path in (*(path for of in folders for path in sorted(of.glob("*.h"))), Path(__file__))
    ]
    digest = hashlib.sha256("".join([text, *inputs]).encode()).hexdigest()
    stamp = library.with_suffix(".sha256")
    if library.exists() and stamp.exists() and stamp.read_text() == digest:
        return
    include = sysconfig.get_paths()["include"]
    source.write_text(text)
    includes = [f"-I{include}", *(f"-I{folder}" for folder in folders)]
    command = ["gcc", *_FLAGS, *more, *includes, str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    stamp.write_text(digest)


def environment() -> dict[str, str]:
    """For a process whose compiled modules are the instrumented ones (tests.fuzz.worker sees to that)."""
    asan = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout
    return os.environ | {
        "LD_PRELOAD": f"{asan.strip()} {FOLDER / 'coverage.so'}",
        "ASAN_OPTIONS": ":".join(f"{name}={value}" for name, value in _ASAN_OPTIONS.items()),
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")]),
        "PYTHONMALLOC": "malloc",  # so that Python's buffers have red zones, too
    }
