"""Arguments of `menura export`, and those of each command that reads changes.

Comes in: the words of a command. Goes out: its arguments, which go together; those that don't are `SinkSettingInvalid`.
"""

import argparse
import math
import os
from enum import StrEnum
from pathlib import Path

from spark_sink.errors import SinkSettingInvalid
from spark_sink.export.envelope import OPERATIONS
from spark_sink.export.fields import Decimals, UnsignedBigints
from spark_sink.export.following import RETRY_SECONDS

#: from where
FROM_BEGINNING, FROM_STATE, FROM_NEWEST = "beginning", "state", "newest"


class Format(StrEnum):
    JSON = "json"
    AVRO = "avro"


def add_arguments(parser: argparse.ArgumentParser, *, needs_lake: bool = True) -> None:
    """Those of each command that reads changes."""
    parser.add_argument("--lake", required=needs_lake, metavar="URL", help="what `menura sink run --lake` names")
    parser.add_argument(
        "--poll-seconds", type=float, default=1.0, metavar="N", help="between two looks for new changes"
    )
    parser.add_argument(
        "--storage-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="how to reach a lake that is a URL; repeatable",
    )


def add_retry_argument(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--retry-seconds",
        type=_seconds,
        metavar="N",
        help=f"{what}: how long what fails is tried again before it is stopped, and the exit code says so (default:"
        f" {RETRY_SECONDS:.0f})",
    )


def retry_seconds_of(arguments: argparse.Namespace, *, is_endless: bool) -> float | None:
    """None: what fails is tried again until the run is stopped. Raises `SinkSettingInvalid`."""
    given: float | None = arguments.retry_seconds
    if not is_endless:
        return RETRY_SECONDS if given is None else given
    if given is not None:
        raise SinkSettingInvalid(
            "reading the arguments",
            "--retry-seconds of a run that does not end by itself",
            remedy="Leave it out: what fails is tried again until the run is stopped, unless on_error is stop",
        )
    return None


def _seconds(word: str) -> float:
    found = float(word)
    if not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError(f"{word!r} is no number of seconds")
    return found


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="menura export", description="Changes of the lake's tables as messages of Debezium's form."
    )
    parser.add_argument(
        "tables", metavar="TABLE", nargs="*", help="TENANT/SOURCE/DATABASE/TABLE, as in the lake; less: all below it"
    )
    parser.add_argument(
        "--file",
        type=Path,
        metavar="FILE",
        help="pipes, in TOML: lake, positions, and each [[pipe]] with its tables and producer; instead of the others",
    )
    parser.add_argument("--status", action="store_true", help="with --file: say how its pipes stand, and run none")
    add_retry_argument(parser, "of --file without --follow")
    add_arguments(parser, needs_lake=False)
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", help="files, each change once; without it standard output"
    )
    parser.add_argument(
        "--kafka", metavar="HOST:PORT,...", help="topics, each change once for who reads committed ones"
    )
    parser.add_argument(
        "--name",
        default="menura",
        help="of the export, which its position and transactions have (default: %(default)s)",
    )
    parser.add_argument(
        "--kafka-option",
        type=_option,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of librdkafka, e.g. of TLS; a value env:NAME is read there; repeatable",
    )
    parser.add_argument("--position", type=Path, metavar="FILE", help="of standard output: read, and kept, here")
    parser.add_argument(
        "--from",
        dest="begin",
        metavar="WHEN",
        help=f"{FROM_BEGINNING} of the changelog, {FROM_STATE} (rows as they are, then changes), {FROM_NEWEST}, or the"
        f" number of a cut; without it behind the output's position, else {FROM_BEGINNING}",
    )
    parser.add_argument("--follow", action="store_true", help="go on with what comes, until it is stopped")
    parser.add_argument("--schema", action="store_true", help="each message with its Kafka Connect schema")
    parser.add_argument("--with-keys", action="store_true", help="KEY, a tab, VALUE; with tombstones after deletes")
    parser.add_argument("--no-tombstones", action="store_true")
    parser.add_argument(
        "--skipped-operations", metavar="OPS", default="", type=operations, help=f"of {''.join(OPERATIONS)}, e.g. t"
    )
    parser.add_argument(
        "--decimals",
        choices=[each.value for each in Decimals],
        default=Decimals.PRECISE.value,
        help="what decimals are: bytes, or numbers, or texts (default: %(default)s)",
    )
    parser.add_argument(
        "--unsigned-bigints",
        choices=[each.value for each in UnsignedBigints],
        default=UnsignedBigints.LONG.value,
        help="whole numbers, in Avro up to 9223372036854775807, or decimals (default: %(default)s)",
    )
    _add_avro_arguments(parser)
    return parser


def _add_avro_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=[each.value for each in Format],
        default=Format.JSON.value,
        help="of messages; avro is for --output, as object container files, and for --kafka, with --registry"
        " (default: %(default)s)",
    )
    parser.add_argument(
        "--registry", metavar="URL,...", help="of schemas of Kafka's messages in Avro, by Confluent's REST interface"
    )
    parser.add_argument(
        "--registry-credentials", type=Path, metavar="FILE", help="with one line, USER:PASSWORD; read for each request"
    )
    parser.add_argument(
        "--registry-ca", type=Path, metavar="FILE", help="whose certificates are good, in PEM; else the system's"
    )


#: what goes with --file
_WITH_FILE = {"file", "status", "follow", "poll_seconds", "retry_seconds", "storage_option"}


def check_file(arguments: argparse.Namespace) -> None:
    """Whether there are pipes of a file, or tables of a lake. Raises `SinkSettingInvalid`."""
    if arguments.file is None:
        if not arguments.tables or arguments.lake is None or arguments.status:
            found = "--status without --file" if arguments.status else "neither TABLE and --lake, nor --file"
            raise SinkSettingInvalid("reading the arguments", found, remedy="Give tables and --lake, or --file")
        if arguments.retry_seconds is not None:
            raise SinkSettingInvalid(
                "reading the arguments",
                "--retry-seconds without --file",
                remedy="Leave it out: what fails ends such an export",
            )
        return
    default = vars(parser().parse_args([]))
    if more := sorted(
        name for name, value in vars(arguments).items() if value != default[name] and name not in _WITH_FILE
    ):
        words = ", ".join(
            {"tables": "TABLE", "begin": "--from"}.get(name, f"--{name.replace('_', '-')}") for name in more
        )
        raise SinkSettingInvalid(
            "reading the arguments", f"--file with {words}", remedy="Say it in the file, of a pipe"
        )


def _option(word: str) -> tuple[str, str]:
    key, sign, value = word.partition("=")
    if not sign:
        raise argparse.ArgumentTypeError(f"{word!r} is not KEY=VALUE")
    if not value.startswith("env:"):
        return key, value
    if (found := os.environ.get(value[4:])) is None:
        raise argparse.ArgumentTypeError(f"{key}: {value[4:]} is not set")
    return key, found


def operations(word: str) -> str:
    if set(word) - set(OPERATIONS):
        raise argparse.ArgumentTypeError(f"{word!r} has others than {', '.join(OPERATIONS)}")
    return word


def check_format(arguments: argparse.Namespace) -> None:
    is_avro, to_kafka, has_registry = arguments.format == Format.AVRO, bool(arguments.kafka), bool(arguments.registry)
    wrong = [
        (is_avro and not to_kafka and arguments.output is None,
         "--format avro to standard output, which has one file for all tables; one in Avro has one schema",
         "Give --output FOLDER, or --kafka and --registry"),
        (is_avro and to_kafka and not has_registry, "--format avro and --kafka without --registry",
         "Give --registry URL, of the schema registry that the consumers ask"),
        (has_registry and not (is_avro and to_kafka), "--registry without --format avro and --kafka",
         "Give both; files in Avro say their schema themselves"),
        (is_avro and arguments.schema, "--format avro and --schema", "Leave --schema out: it is of JSON"),
    ]  # fmt: skip
    for is_wrong, found, remedy in wrong:
        if is_wrong:
            raise SinkSettingInvalid("reading the arguments", found, remedy=remedy)
