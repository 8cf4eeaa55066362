"""`menura lake at WHEN TABLE...`: tables of a lake as of one cut of each source, without Spark.

Comes in: the lake's address, for when, and which tables. Goes out, on standard output or as files of a folder: the cut
of each source with each table's versions, the tables' rows, or statements that make views in Spark. Nothing of the
lake is changed. A file is written beside its name and renamed, so a kill leaves whole files only.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
from menura.instants import instant_text
from menura.stores.address import absolute

from spark_sink.errors import (
    CutBeforeHorizon,
    CutNotComplete,
    SinkError,
    SinkSettingInvalid,
    TableNotAtCut,
    TableNotInLake,
)
from spark_sink.lake.table_folders import table_folder
from spark_sink.landed.storage import use_options
from spark_sink.reading_at import LakeCut, SourceName, folder_path, lake_at
from spark_sink.shards import Shards, groups_of
from spark_sink.work import CURRENT, TableId, name_of_segment

NEWEST = "newest"
ASK_AGAIN_SECONDS = 0.5
#: what the sink's next batches may mend for somebody who asks for the newest cut
_NOT_YET = (CutBeforeHorizon, CutNotComplete, TableNotAtCut, TableNotInLake)
_VIEW_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_CUTS = re.compile(r"(?:[^=,]+=[0-9]{1,18})(?:,[^=,]+=[0-9]{1,18})*")


@dataclass(frozen=True, slots=True)
class When:
    """A cut of each source, a time of all, or (neither) the newest."""

    cuts: Mapping[SourceName, int] | None = None
    at_us: int | None = None


def main() -> int:
    arguments = parser().parse_args()
    try:
        use_options(arguments.storage_option)
        when, lake = read_when(arguments.when), absolute(arguments.lake)
        patterns = [word for word in arguments.tables if set(word) & set("*?")]
        tables, groups = read_names([word for word in arguments.tables if word not in patterns])
        found = _when_readable(
            lambda: lake_at(
                lake,
                tables,
                [*groups, *groups_of(lake, patterns)],
                cuts=when.cuts,
                at_us=when.at_us,
                allow_incomplete=arguments.allow_incomplete,
            ),
            _NOT_YET if when == When() else (CutNotComplete,),
            arguments.wait,
        )
        if arguments.union is None:
            _put(found, arguments.format, arguments.output)
        else:
            _put_union(Shards.of(found), arguments.union, arguments.format, arguments.output)
    except SinkError as failure:
        print(f"menura lake: {failure}", file=sys.stderr)
        return failure.exit_code
    return 0


def _when_readable(read: Callable[[], LakeCut], not_yet: tuple[type[SinkError], ...], wait_s: float) -> LakeCut:
    """Asks again until it is answered; raises what it was refused with last, once `wait_s` seconds have passed."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return read()
        except not_yet:
            if time.monotonic() >= deadline:
                raise
        time.sleep(ASK_AGAIN_SECONDS)


def read_when(word: str) -> When:
    """From the command line.

    >>> read_when("acme/shop=812,acme/crm=40").cuts
    {('acme', 'shop'): 812, ('acme', 'crm'): 40}
    >>> read_when("2023-11-14T22:13:20Z").at_us
    1700000000000000
    """
    if word == NEWEST:
        return When()
    if _CUTS.fullmatch(word):
        cuts = {_source(name): int(cut) for name, cut in (part.split("=") for part in word.split(","))}
        return When(cuts=cuts)
    try:
        at = datetime.fromisoformat(word)
    except ValueError:
        raise _wrong(word) from None
    if at.tzinfo is None:
        raise _wrong(word)
    since = at.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return When(at_us=(since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)


def _wrong(word: str) -> SinkSettingInvalid:
    return SinkSettingInvalid(
        "reading the arguments",
        f"{word!r} is no time with its zone, no cut of a source, and not {NEWEST!r}",
        remedy="Give e.g. 2026-01-31T12:00:00Z, TENANT/SOURCE=CUT,..., or newest",
    )


def _source(word: str) -> SourceName:
    parts = word.split("/")
    if len(parts) != 2 or not all(parts):
        raise SinkSettingInvalid("reading the arguments", f"{word!r} is no source", remedy="Give TENANT/SOURCE=CUT")
    return parts[0], parts[1]


def read_names(words: Sequence[str]) -> tuple[list[TableId], list[tuple[str, ...]]]:
    """Tables and groups, by their folders below the lake.

    >>> read_names(["acme/shop/shop/order~20lines", "acme/crm"])
    ([TableId(tenant='acme', source='shop', database='shop', table='order lines')], [('acme', 'crm')])
    """
    tables: list[TableId] = []
    groups: list[tuple[str, ...]] = []
    for word in words:
        parts = word.rstrip("/").split("/")
        if not 2 <= len(parts) <= 4 or not all(parts):
            raise SinkSettingInvalid(
                "reading the arguments",
                f"{word!r} names no tables",
                remedy="Give TENANT/SOURCE, TENANT/SOURCE/DATABASE or TENANT/SOURCE/DATABASE/TABLE, as in the lake",
            )
        plain = [*parts[:2], *(name_of_segment(part) for part in parts[2:])]
        if len(plain) == 4:
            tables.append(TableId(*plain))
        else:
            groups.append(tuple(plain))
    return tables, groups


def _put(found: LakeCut, form: str, output: Path | None) -> None:
    if form in _WRITERS:
        _put_rows(found, form, output)
        return
    _put_text(_TEXTS[form](found), output)


def _put_text(text: str, output: Path | None) -> None:
    if output is None:
        print(text)
    else:
        with _file(output) as draft:
            draft.write_text(f"{text}\n")


def _text(found: LakeCut) -> str:
    lines = []
    for source in found.sources:
        committed = instant_text(source.committed_us) if source.committed_us else "unknown"
        lines.append(
            f"source {source.tenant}/{source.source}  cut {source.cut}  committed {committed}{_noted(source.note)}"
        )
    for each in found.tables:
        folder = f"{table_folder(found.lake, each.table)}/{CURRENT}"
        lines.append(f"table {folder_path(each.table)}  version {each.current_version} of {folder}{_noted(each.note)}")
    return "\n".join(lines)


def _noted(note: str) -> str:
    return f"  INCOMPLETE: {note}" if note else ""


def _json(found: LakeCut) -> str:
    tables = [
        {
            **asdict(each.table),
            "folder": table_folder(found.lake, each.table),
            "changelog_version": each.changelog_version,
            "current_version": each.current_version,
            "note": each.note,
        }
        for each in found.tables
    ]
    return json.dumps(
        {"lake": found.lake, "sources": [asdict(each) for each in found.sources], "tables": tables}, indent=2
    )


def _sql(found: LakeCut) -> str:
    return "\n".join(found.statements())


_TEXTS: Mapping[str, Callable[[LakeCut], str]] = {"text": _text, "json": _json, "sql": _sql}


def _write_csv(rows: pa.Table, path: Path) -> None:
    pyarrow.csv.write_csv(rows, path)


def _write_arrow(rows: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as file:
        file.write_table(rows)


_WRITERS: Mapping[str, Callable[[pa.Table, Path], None]] = {"csv": _write_csv, "arrow": _write_arrow}


def _put_rows(found: LakeCut, form: str, output: Path | None) -> None:
    """A file of each table, by its folder's path below `output`; beside them the cut, which is written last."""
    if output is None:
        if form != "csv" or len(found.tables) != 1:
            raise SinkSettingInvalid(
                "writing rows", "standard output takes one table as csv", remedy="Name a folder: --output FOLDER"
            )
        (only,) = found.tables
        pyarrow.csv.write_csv(found.arrow(only.table), sys.stdout.buffer)
        return
    for each in found.tables:
        with _file(output / f"{folder_path(each.table)}.{form}") as draft:
            _WRITERS[form](found.arrow(each.table), draft)
    with _file(output / "cut.json") as draft:
        draft.write_text(_json(found))
    print(_text(found))


def _put_union(shards: Shards, name: str, form: str, output: Path | None) -> None:
    """All tables as one: a statement, or rows in one file, which stand in memory together."""
    if not _VIEW_NAME.fullmatch(name):
        raise SinkSettingInvalid("reading the arguments", f"--union {name!r}", remedy="Use a-z, A-Z, 0-9 and '_'")
    if form == "sql":
        _put_text(shards.statement(name), output)
    elif form in _WRITERS and output is not None:
        with _file(output / f"{name}.{form}") as draft:
            _WRITERS[form](shards.arrow(), draft)
        _put_text(_json(shards.at), output / "cut.json")
    elif form == "csv":
        pyarrow.csv.write_csv(shards.arrow(), sys.stdout.buffer)
    else:
        remedy = "Use --format sql or csv, or --output FOLDER"
        raise SinkSettingInvalid("writing rows", f"--union has no {form} here", remedy=remedy)


@contextmanager
def _file(path: Path) -> Iterator[Path]:
    """A name for the time of writing."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        draft.replace(path)
    except (OSError, pa.ArrowException) as failure:
        raise SinkSettingInvalid(
            f"writing {path}",
            f"{type(failure).__name__}",
            data="The file is not there",
            remedy="Choose another --output",
        ) from failure


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="menura lake", description="Read tables of a lake together.")
    commands = parser.add_subparsers(required=True)
    at = commands.add_parser("at", help="as of one cut of each source, or a time")
    at.add_argument("when", metavar="WHEN", help="newest, a time (2026-01-31T12:00:00Z), or TENANT/SOURCE=CUT,...")
    at.add_argument(
        "tables",
        metavar="TABLE",
        nargs="+",
        help="TENANT/SOURCE/DATABASE/TABLE; less: all below it; with * and ?: all that fit",
    )
    at.add_argument("--lake", required=True, metavar="URL", help="what `menura sink run --lake` names")
    at.add_argument(
        "--format",
        choices=(*_TEXTS, *_WRITERS),
        default="text",
        help="text, json: which versions to read; sql: views for Spark; csv, arrow: rows (default: %(default)s)",
    )
    at.add_argument("--output", type=Path, metavar="PATH", help="a file; of rows the folder with a file of each table")
    at.add_argument(
        "--union",
        metavar="NAME",
        help="all tables as one: a view or file of this name, with _menura_source, _menura_database and _menura_table",
    )
    at.add_argument(
        "--allow-incomplete",
        action="store_true",
        help="also where a table is being dumped or read again, or something of the time may still come",
    )
    at.add_argument(
        "--wait",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="ask again for so long where the lake does not have it yet, e.g. because a dump goes on",
    )
    at.add_argument(
        "--storage-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="how to reach a lake that is a URL; repeatable",
    )
    return parser
