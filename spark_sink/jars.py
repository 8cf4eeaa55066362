"""`python -m spark_sink.jars FOLDER`: Delta's jars, fetched by the ivy that PySpark carries, and Spark's class archive.

Ivy runs with settings of its own in a scratch folder: Spark's `--packages` would also search the user's
Maven folder and fails where that holds a POM without its jar. `class_archive` makes the archive, in its own process.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from spark_sink.errors import JarsMissing, JarsNotFetched, JavaMissing, SinkError

#: (organisation, module, revision): what PySpark 4.2.1 lacks, and nothing that it has
MODULES = (("io.delta", "delta-spark_4.2_2.13", "4.4.0"), ("io.delta", "delta-storage", "4.4.0"))
CLASS_ARCHIVE = f"spark-{pyspark.__version__}.jsa"
JARS_VARIABLE = "MENURA_JARS"
FETCH_SECONDS = 300
SMALLEST_JAR_BYTES = 10_000

SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir="{cache}"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""


def jar_names() -> tuple[str, ...]:
    return tuple(f"{module}-{revision}.jar" for _, module, revision in MODULES)


def find_jars() -> list[Path]:
    """Delta's jars: in `MENURA_JARS`, else in .jars of the working folder or of the checkout. Raises `JarsMissing`."""
    chosen = os.environ.get(JARS_VARIABLE)
    folders = [Path(chosen)] if chosen else [Path(".jars"), Path(__file__).resolve().parents[1] / ".jars"]
    for folder in folders:
        jars = [folder.absolute() / name for name in jar_names()]
        if all(jar.is_file() for jar in jars):
            return jars
    raise JarsMissing(
        "looking for Delta's jars",
        f"{' and '.join(jar_names())} are not in {' nor '.join(str(folder) for folder in folders)}",
        remedy=f"Run: python -m spark_sink.jars .jars (or point {JARS_VARIABLE} at the folder that holds them)",
    )


def find_class_archive() -> Path | None:
    """Spark's class archive beside Delta's jars, if it was made. Raises `JarsMissing`."""
    archive = find_jars()[0].with_name(CLASS_ARCHIVE)
    return archive if archive.is_file() else None


def find_java() -> str:
    """The java that Spark would start: of JAVA_HOME, else of the PATH. Raises `JavaMissing`."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        raise JavaMissing(
            "looking for Java",
            f"no java in {f'{home}/bin (JAVA_HOME)' if home else 'any folder of PATH'}",
            remedy="Install a Java 17 runtime, e.g. openjdk-17-jre-headless, or point JAVA_HOME at one",
        )
    return java


def fetch_jars(folder: Path) -> list[Path]:
    """Download what is missing into `folder`; the paths. Raises `JarsNotFetched`."""
    return [fetch_module(module, folder) for module in MODULES]


def fetch_module(module: tuple[str, str, str], folder: Path) -> Path:
    """The jar of (organisation, module, revision) in `folder`, downloaded if it is not there. Raises `JarsNotFetched`,
    `JavaMissing`."""
    java = find_java()
    _, name, revision = module
    jar = folder / f"{name}-{revision}.jar"
    if jar.is_file():
        return jar
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="menura-ivy-") as scratch:
        settings = Path(scratch) / "settings.xml"
        settings.write_text(SETTINGS.format(cache=Path(scratch) / "cache"))
        _run_ivy(java, settings, module, Path(scratch) / "jars")
        _move_in(Path(scratch) / "jars" / jar.name, jar)
    return jar


def _run_ivy(java: str, settings: Path, module: tuple[str, str, str], into: Path) -> None:
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    command = [java, "-cp", str(ivy), "org.apache.ivy.Main", "-settings", str(settings), "-dependency", *module]
    options = [
        "-notransitive",
        "-confs",
        "default",
        "-types",
        "jar",
        "-retrieve",
        f"{into}/[artifact]-[revision].[ext]",
    ]
    try:
        ran = subprocess.run([*command, *options], capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    except subprocess.TimeoutExpired as late:
        raise JarsNotFetched(
            f"fetching {':'.join(module)}",
            f"no end within {FETCH_SECONDS} s",
            remedy="Check that Maven Central can be reached, then run this again",
        ) from late
    if ran.returncode:
        last = " / ".join((ran.stdout + ran.stderr).strip().splitlines()[-8:])
        raise JarsNotFetched(
            f"fetching {':'.join(module)}",
            f"ivy ended with {ran.returncode}: {last}",
            remedy="Check that Maven Central can be reached, then run this again",
        )


def _move_in(fetched: Path, jar: Path) -> None:
    size_bytes = fetched.stat().st_size if fetched.is_file() else 0
    if size_bytes < SMALLEST_JAR_BYTES:
        raise JarsNotFetched(
            f"fetching {jar.name}", f"ivy reported no error, yet {size_bytes} bytes arrived", remedy="Run this again"
        )
    draft = jar.with_suffix(".part")
    shutil.copyfile(fetched, draft)
    draft.rename(jar)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m spark_sink.jars", description="Fetch Delta's jars into a folder.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    try:
        fetch_jars(folder)
    except SinkError as failure:
        print(failure, file=sys.stderr)  # noqa: T201
        return failure.exit_code
    archiving = [sys.executable, "-m", "spark_sink.class_archive"]
    return subprocess.run(archiving, env={**os.environ, JARS_VARIABLE: str(folder)}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
