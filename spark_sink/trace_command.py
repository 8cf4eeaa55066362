"""`menura trace TABLE KEY...`: one row from its source's log to what readers of the lake see, without Spark.

Comes in: the lake's address, the landing's where it can be reached, a table and a key. Goes out, on standard output: a
`Trace`, as lines or as JSON. No value of a row is told but its key's. Nothing is changed.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict

from deltalake.exceptions import DeltaError
from menura.errors import printable
from menura.instants import instant_text
from menura.stores.address import absolute
from menura.stores.reasons import reason_of

from spark_sink.errors import LakeStorageFailed, SinkError, SinkSettingInvalid
from spark_sink.lake_command import read_names
from spark_sink.landed.storage import use_options
from spark_sink.trace import DUMPED_ROW, MOVED_AWAY, Change, Proof, Trace, VersionAt, trace


def main() -> int:
    arguments = parser().parse_args()
    try:
        use_options(arguments.storage_option)
        landing = absolute(arguments.landing) if arguments.landing is not None else None
        found = _traced(absolute(arguments.lake), arguments.table, arguments.key, landing)
    except SinkError as failure:
        print(f"menura trace: {failure}", file=sys.stderr)
        return failure.exit_code
    print(
        json.dumps(asdict(found), indent=2) if arguments.format == "json" else "\n".join(map(printable, lines(found)))
    )
    return 0


def _traced(lake: str, word: str, key: list[str], landing: str | None) -> Trace:
    tables, _ = read_names([word])
    if not tables:
        raise SinkSettingInvalid(
            "reading the arguments", f"{word!r} is no table", remedy="Give TENANT/SOURCE/DATABASE/TABLE, as in the lake"
        )
    (table,) = tables
    try:
        return trace(lake, table, key, landing)
    except (OSError, DeltaError) as failure:
        raise LakeStorageFailed(
            "tracing a row",
            f"a store failed: {reason_of(failure) if isinstance(failure, OSError) else type(failure).__name__}",
            data="Nothing was changed",
            remedy="Check the storage of the lake and the landing, then ask again",
            **table.where(0),
        ) from failure


def lines(found: Trace) -> Iterator[str]:
    """For a reader."""
    key = ", ".join(f"{name}={value}" for name, value in found.key)
    seen = {0: "no row", 1: "1 row"}.get(
        found.rows, f"{found.rows} rows, which is a fault: verify and repair the table"
    )
    yield f"{found.table}  {key}: readers see {seen}"
    if found.is_cut_off:
        yield f"  before: more changes than the newest {len(found.changes)}"
    for change in found.changes:
        yield from _change(change)
    for change in found.waiting:
        yield from _change(change)
        yield "  lake       not yet"
    if not found.changes and not found.waiting:
        yield "no change of it is known"
    yield from _looked(found)
    yield from (f"note         {note}" for note in found.notes)
    yield from _proofs(found)


def _change(change: Change) -> Iterator[str]:
    yield f"{change.kind}  gsn {change.gsn}{'  <- what readers see' if change.is_shown else ''}"
    verb = "read" if change.kind == DUMPED_ROW else "committed"
    number = f"transaction {change.transaction_id}, " if change.transaction_id else ""
    yield f"  source     {change.position or 'position unknown'}, {number}{verb} {instant_text(change.committed_us)}"
    if change.landed is not None:
        at = change.landed
        yield f"  landed     entry {at.entry}, {instant_text(at.committed_at_us)}, by {at.gateway}, cut {at.cut}"
        yield from (f"  file       {path}{'' if is_there else '  (removed)'}" for path, is_there in at.files)
    if change.changelog is not None:
        yield f"  changelog  {_version(change.changelog)}"
    if change.current is not None:
        yield f"  current    {_version(change.current)}"
    elif change.changelog is not None and change.kind != MOVED_AWAY:
        yield "  current    not merged yet: readers of spark_sink.reading see it all the same"
    if change.note:
        yield f"  note       {change.note}"


def _version(at: VersionAt) -> str:
    words = f"version {at.version}, {instant_text(at.at_us)}"
    return words if at.is_first else f"{words}, or an earlier one: Delta's log has none before"


def _looked(found: Trace) -> Iterator[str]:
    looked = found.looked
    since = f"changes from gsn {looked.begins_gsn} on" if looked.begins_gsn else "all changes that came"
    read = f"{looked.changelog_files_read} of {looked.changelog_files} files"
    yield f"looked at    the changelog, {since}, up to cut {looked.cut}, gsn {looked.gsn}: {read} may have the key"
    if looked.last_entry:
        yield f"looked at    the cut log, entries {looked.first_entry} to {looked.last_entry}"
    else:
        yield "looked at    no landing: give --landing to see entries, files, and what the lake lacks yet"
    for event in found.events[-10:]:
        said = event["statement"] or event["dump"] or event["unlogged_changes"] or ""
        at = instant_text(event["_commit_timestamp_us"])
        yield f"table        {event['kind']}, gsn {event['_gsn']}, cut {event['cut']}, {at} {said}".rstrip()


def _proofs(found: Trace) -> Iterator[str]:
    if found.newest is None:
        yield "proof        the table was never verified in this lake"
        return
    yield f"verified     {_verdict(found.newest)}"
    of_key = {"row": "this row differs", "leaf": "this row is among those of which some differ"}
    if found.newest.says_of_key:
        yield f"             {of_key[found.newest.says_of_key]}"
    if found.equal is not None:
        yield f"proof        {_verdict(found.equal)}: with changes up to gsn {found.equal.gsn} for certain"


def _verdict(proof: Proof) -> str:
    position = f" at {proof.position}" if proof.position else ""
    reason = f", {proof.reason}" if proof.reason else ""
    return f"{proof.verdict}{reason}{position}, cut {proof.cut}, {instant_text(proof.at_us)}, by {proof.verification}"


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="menura trace", description="One row from its source's log to what readers of the lake see."
    )
    parser.add_argument("table", metavar="TABLE", help="TENANT/SOURCE/DATABASE/TABLE, as in the lake")
    parser.add_argument(
        "key",
        metavar="KEY",
        nargs="+",
        help="a value for each column of the key, or all as verdicts have them: '[\"7\"]'",
    )
    parser.add_argument("--lake", required=True, metavar="URL", help="what `menura sink run --lake` names")
    parser.add_argument("--landing", metavar="URL", help="what `menura gateway run --landing` names")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="(default: %(default)s)")
    parser.add_argument(
        "--storage-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="how to reach a lake or landing that is a URL; repeatable",
    )
    return parser
