"""`menura search index | query | check | serve`: indexes of the lake's tables, without Spark.

Comes in: the lake's address, tables, and the folder of indexes, or the OpenSearch that has them; of a search its words.
Goes out: indexes that follow the tables; rows that a search finds; whether an index has its table's rows; answers over
HTTP (`search_server`). Nothing of the lake is changed.
"""

import argparse
import json
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from menura import log_format
from menura.errors import printable
from menura.signals import set_at_signal
from menura.stores.address import absolute

from spark_sink.errors import LakeStorageFailed, SinkError, SinkSettingInvalid, TableNotInLake
from spark_sink.export.lake_access import check_tables, waiting
from spark_sink.export_arguments import add_arguments
from spark_sink.lake_command import read_names
from spark_sink.landed.storage import use_options
from spark_sink.metrics_arguments import add_metrics_arguments
from spark_sink.search.lag import BETWEEN, STORE_FAILURES, lag_of, store_reason
from spark_sink.search_arguments import add_where, where_of
from spark_sink.work import TableId

if TYPE_CHECKING:
    from spark_sink.search.asking import Found
    from spark_sink.search.checking import Comparison
    from spark_sink.search.following import Follower

#: of a table on a terminal
_CELL_CHARS = 40


def main() -> int:
    arguments = parser().parse_args()
    try:
        _check_packages()
        use_options(arguments.storage_option)
        with _store_failures():
            done: int = arguments.do(arguments)
    except SinkError as failure:
        print(f"menura search: {failure}", file=sys.stderr)
        return failure.exit_code
    return done


def _check_packages() -> None:
    for package in ("tantivy", "starlette", "uvicorn"):
        if find_spec(package) is None:
            raise SinkSettingInvalid(
                "reading the arguments", f"the package {package} is not installed", remedy="Install menura[search]"
            )


def _index(arguments: argparse.Namespace) -> int:
    from spark_sink.search.following import Follower  # noqa: PLC0415  (only who has the package)
    from spark_sink.search.searching import engine_of  # noqa: PLC0415

    stop = threading.Event()
    set_at_signal(stop, signal.SIGTERM, signal.SIGINT)
    lake = absolute(arguments.lake)
    tables, groups = read_names(arguments.tables)
    if not arguments.follow:
        check_tables(lake, tables)
    with where_of(arguments) as where, (engine := engine_of(where)).taking():
        follower = Follower(lake, engine, tables, groups)
        told: frozenset[str] = frozenset()
        while not stop.is_set():
            is_done, absent = _turn(follower, tables, may_come=arguments.follow)
            said = told if not is_done else frozenset((*waiting(follower.feed).values(), *absent))
            said |= {f"{table} is left out, others go on: {why}" for table, why in follower.failed.items()}
            for words in sorted(said - told):
                print(words, file=sys.stderr)
            told = said
            if is_done and not arguments.follow:
                break
            if is_done:
                stop.wait(arguments.poll_seconds)
        follower.close()
        return max((failure.exit_code for failure in follower.failed.values()), default=0)


def _turn(follower: "Follower", tables: Sequence[TableId], *, may_come: bool) -> tuple[bool, list[str]]:
    """Whether all that the lake has is indexed, and what to say of what it does not have yet.

    Raises `TableNotInLake` where nothing `may_come`.
    """
    try:
        if follower.turn():
            return False, []
    except TableNotInLake as missing:  # a source without a cut
        if not may_come:
            raise
        return True, [f"Waits for a source: {missing}"]
    known = {*follower.feed.position.tables, *follower.failed}
    return True, [
        f"{table} is not in the lake yet, and is indexed when it comes" for table in tables if table not in known
    ]


def _query(arguments: argparse.Namespace) -> int:
    from spark_sink.search.asking import Search  # noqa: PLC0415  (only who has the package)
    from spark_sink.search.searching import open_search  # noqa: PLC0415

    table = _one_table(arguments.table)
    search = Search(
        arguments.text, arguments.filter, arguments.facet, arguments.limit, timeout_seconds=arguments.timeout_seconds
    )
    with where_of(arguments) as where:
        index = open_search(where, table)
        found = index.ask(search)
    reached = index.reached
    behind: dict[str, object] = {"index_cut": reached.cut}
    try:
        behind = asdict(lag_of(absolute(arguments.lake) if arguments.lake else reached.lake, table, reached))
    except SinkError as failure:
        behind["unknown"] = failure.found
    except STORE_FAILURES as failure:
        behind["unknown"] = store_reason(failure)
    if reached.is_between:
        behind["unknown"] = BETWEEN
    _PUT[arguments.output](found, behind)
    return 0


def _put_json(found: "Found", behind: Mapping[str, object]) -> None:
    print(json.dumps({**asdict(found), "behind": behind}, ensure_ascii=False))


def _put_table(found: "Found", behind: Mapping[str, object]) -> None:
    names = list(found.rows[0]) if found.rows else []
    cells = [list(map(_cell, names)), *([_cell(row[name]) for name in names] for row in found.rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(names))]
    for row in cells if names else ():
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for name, facet in found.facets.items():
        print(f"\n{_cell(name)}:")
        for count in facet.counts:
            print(f"  {count.rows:>10}  {_cell(count.value)}")
        if facet.other_rows:
            print(f"  {facet.other_rows:>10}  with other values")
    print(f"\n{len(found.rows)} of {found.total} rows, {_behind(behind)}")
    if found.left_out:
        print(f"{found.left_out} rows are left out, since all would be too many bytes")
    if found.clipped:
        print(f"{found.clipped} rows of the table have texts that are too long to be searched to their end")


def _behind(behind: Mapping[str, object]) -> str:
    if "unknown" in behind:
        return f"as of cut {behind['index_cut']}; how far that is behind the lake is unknown: {behind['unknown']}"
    if behind["seconds"] == 0:
        return f"as of the lake's newest cut, {behind['lake_cut']}"
    return f"as of cut {behind['index_cut']}; the lake is at cut {behind['lake_cut']}, {behind['seconds']:.1f} s ahead"


def _cell(value: object) -> str:
    text = printable("NULL" if value is None else str(value))
    return text if len(text) <= _CELL_CHARS else f"{text[: _CELL_CHARS - 1]}…"


_PUT = {"json": _put_json, "table": _put_table}


def _check(arguments: argparse.Namespace) -> int:
    from spark_sink.search.checking import compare  # noqa: PLC0415  (only who has the package)
    from spark_sink.search.searching import open_digests  # noqa: PLC0415

    lake, code = absolute(arguments.lake) if arguments.lake else None, 0
    with where_of(arguments) as where:
        for word in arguments.tables:
            table = _one_table(word)
            with open_digests(where, table) as index:
                found = compare(lake, index, table)
            print(f"{word}: {_verdict(found)}")
            code = code if found.is_equal else 1
    return code


def _verdict(found: "Comparison") -> str:
    counted = f"at cut {found.cut}: {found.index_rows} rows in the index, {found.lake_rows} in the lake"
    if found.is_equal:
        return f"equal {counted}, sums of keys {found.key_sums[0]:016x}, and sums of rows"
    index, lake = (f"{each:016x}" for each in found.key_sums)
    columns = "; the index is of other columns" if found.columns_differ else ""
    return (
        f"DIFFERS {counted}; sums of keys {index} and {lake}; {found.ranges} ranges of keys differ, in which the index"
        f" lacks {found.missing} rows, has {found.extra} too many, and {found.other} with other values{columns}"
    )


def _serve(arguments: argparse.Namespace) -> int:
    from spark_sink.search_server import serve  # noqa: PLC0415  (only who has the package)

    return serve(arguments)


def _one_table(word: str) -> TableId:
    tables, _ = read_names([word])
    if not tables:
        raise SinkSettingInvalid(
            "reading the arguments", f"{word!r} names no single table", remedy="Give TENANT/SOURCE/DATABASE/TABLE"
        )
    return tables[0]


@contextmanager
def _store_failures() -> Iterator[None]:
    """Of the lake's store, which is all that is not caught before."""
    try:
        yield
    except STORE_FAILURES as failure:
        raise LakeStorageFailed(
            "reading a lake for search",
            store_reason(failure),
            data="Each index stays at its last commit",
            remedy="Check the lake's storage, and whether the version is kept still (--keep-hours), then try again",
        ) from failure


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="menura search", description="Search in tables and views of a lake.")
    commands = parser.add_subparsers(required=True)
    table = "TENANT/SOURCE/DATABASE/TABLE, as in the lake"
    index = commands.add_parser("index", help="make indexes of tables, and bring them to the lake's newest cut")
    index.add_argument("tables", metavar="TABLE", nargs="+", help=f"{table}; less: all below it")
    add_arguments(index)
    index.add_argument("--follow", action="store_true", help="go on with what comes, until it is stopped")
    index.set_defaults(do=_index)
    query = commands.add_parser("query", help="rows that have all words of a text")
    query.add_argument(
        "text", metavar="TEXT", help="""words, begin*, "a phrase", -without, COLUMN:word; '' for all rows"""
    )
    query.add_argument("--table", required=True, metavar="TABLE", help=table)
    query.add_argument(
        "--filter",
        action="append",
        default=[],
        metavar="COL=VALUE",
        help="or != < <= > >=, or COL IS [NOT] NULL; repeatable: all must be so",
    )
    query.add_argument(
        "--facet", action="append", default=[], metavar="COL", help="how many rows have each value; repeatable"
    )
    query.add_argument("--limit", type=int, default=10, metavar="N", help="of rows (default: %(default)s)")
    query.add_argument("--timeout-seconds", type=float, default=10.0, metavar="N", help="(default: %(default)s)")
    query.add_argument("--output", choices=tuple(_PUT), default="table", help="(default: %(default)s)")
    query.set_defaults(do=_query)
    check = commands.add_parser("check", help="whether indexes have their tables' rows; ends with 1 where one has not")
    check.add_argument("tables", metavar="TABLE", nargs="+", help=table)
    check.set_defaults(do=_check)
    serve = commands.add_parser("serve", help="answer searches over HTTP: for the control plane's API")
    _add_serve_arguments(serve)
    serve.set_defaults(do=_serve)
    for command in (index, query, check, serve):
        add_where(command)
    for command in (query, check, serve):
        command.add_argument("--lake", metavar="URL", help="where the index's lake is now")
        command.add_argument(
            "--storage-option",
            metavar="KEY=VALUE",
            action="append",
            default=[],
            help="how to reach a lake that is a URL; repeatable",
        )
    return parser


def _add_serve_arguments(serving: argparse.ArgumentParser) -> None:
    serving.add_argument(
        "--listen", default="127.0.0.1:7090", metavar="HOST:PORT", help="port 0 for any free one (default: %(default)s)"
    )
    serving.add_argument("--token-file", type=Path, metavar="FILE", help="whose token a question needs")
    serving.add_argument("--tls-certificate", type=Path, metavar="FILE", help="PEM; beyond loopback with --tls-key")
    serving.add_argument("--tls-key", type=Path, metavar="FILE", help="PEM; both files may change while it runs")
    serving.add_argument(
        "--most-at-once",
        type=int,
        default=8,
        metavar="N",
        help="searches that run at once, those included that took too long; others are refused (default: %(default)s)",
    )
    serving.add_argument(
        "--timeout-seconds", type=float, default=10.0, metavar="N", help="of one search (default: %(default)s)"
    )
    add_metrics_arguments(serving)
    serving.add_argument("--log-format", choices=log_format.FORMATS, help=log_format.HELP)
