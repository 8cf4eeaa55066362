"""Build steps that pyproject.toml can't name: the protocol's stubs and the compiled core."""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
PROTO = ROOT / "proto"
PARTS = ("agent", "gateway", "controlplane_api", "spark_sink")


def generate_stubs() -> None:
    """Write `menura/v1/*_pb2.py`, their types and the gRPC stubs beside the .proto files."""
    from grpc_tools import protoc  # noqa: PLC0415  (a build requirement, absent when the sdist's metadata is read)

    well_known = Path(protoc.__file__).parent / "_proto"
    sources = sorted(str(path.relative_to(PROTO)) for path in (PROTO / "menura" / "v1").glob("*.proto"))
    arguments = ["protoc", f"-I{PROTO}", f"-I{well_known}", f"--python_out={PROTO}", f"--pyi_out={PROTO}"]
    if protoc.main([*arguments, f"--grpc_python_out={PROTO}", *sources]) != 0:
        raise SystemExit("protoc failed on proto/menura/v1: see its message above")
    for stub in (PROTO / "menura" / "v1").glob("*_pb2_grpc.py"):
        if stub.name != "stream_pb2_grpc.py":  # only stream.proto has a service
            stub.unlink()


class BuildPy(build_py):
    def run(self) -> None:
        generate_stubs()
        super().run()


# What both sides of the wire share is the contract's.
CORE = {
    "agent.columnar": ROOT / "agent" / "columnar",
    "agent.sources.mysql.native": ROOT / "agent" / "sources" / "mysql" / "native",
    "agent.sources.postgresql.native": ROOT / "agent" / "sources" / "postgresql" / "native",
    "menura": PROTO / "menura",
}
HEADERS = [
    str(header.relative_to(ROOT))
    for folder in CORE.values()
    for header in sorted(folder.glob("*"))
    if header.suffix in {".h", ".pxd"}
]
# Code for any x86-64 or arm64 of the last ten years; what is faster still is chosen at run time. Without debug info
# and symbols, which are four fifths of its size.
core = [
    Extension(
        f"{package}.{source.stem}",
        [str(source.relative_to(ROOT))],
        include_dirs=["proto/menura"],
        depends=HEADERS,
        extra_compile_args=["-O3", "-g0", "-fno-strict-aliasing", "-Wall", "-Wextra", "-Wno-unused-parameter"],
        extra_link_args=["-s"],
    )
    for package, folder in CORE.items()
    for source in sorted(folder.glob("*.pyx"))
]

setup(
    cmdclass={"build_py": BuildPy},
    options={"build_ext": {"parallel": os.cpu_count()}},
    packages=find_packages(str(PROTO)) + find_packages(str(ROOT), include=[f"{part}*" for part in PARTS]),
    package_dir={"menura": "proto/menura"},
    ext_modules=cythonize(
        core,
        include_path=["proto"],
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "freethreading_compatible": False,
        },
        nthreads=2,
    ),
)
