"""Arguments of `menura sink run`, and the settings that they stand for."""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from menura import log_format
from menura.stores.address import absolute

from spark_sink.errors import SinkSettingInvalid
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.views_file import ViewsFile
from spark_sink.lake.changelog_retention import KeepRules
from spark_sink.lake.folder_rules import FolderRules
from spark_sink.lake.record_rows import FOLDER
from spark_sink.lake.retention import KEEP_HOURS
from spark_sink.lake.schema_policy import SchemaPolicy, SchemaRules
from spark_sink.lake.table_options import NO_OPTION, OPTIONS, OptionRules
from spark_sink.lake.tail import DETACHED_BYTES, MERGE_SECONDS, Waiting
from spark_sink.landed.storage import use_options
from spark_sink.metrics_arguments import add_metrics_arguments
from spark_sink.views.store_folders import default_folder

T = TypeVar("T")


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="menura sink", description="From the gateway's landing into the lake.")
    commands = found.add_subparsers(required=True)
    running = commands.add_parser("run", help="follow the cut log until stopped")
    running.add_argument("--landing", required=True, metavar="URL", help="what `menura gateway run --landing` names")
    running.add_argument("--lake", required=True, metavar="URL", help="folder of the Delta tables")
    running.add_argument(
        "--storage-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="how to reach a landing or lake that is a URL; repeatable",
    )
    running.add_argument("--master", default="local[*]", help="Spark's master (default: this machine, all cores)")
    running.add_argument(
        "--conf",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a setting of Spark's, e.g. spark.executor.memory=4g; repeatable",
    )
    running.add_argument("--checkpoint", metavar="URL", help="Spark's checkpoint (default: LAKE/_menura/checkpoint)")
    running.add_argument(
        "--api", metavar="URL", help="the control plane's, which is told how the lake is (http://127.0.0.1:7080)"
    )
    said = "file with a token of the role sink, for --api (MENURA_API_TOKEN_FILE)"
    token_file, ca = (os.environ.get(f"MENURA_API_{name}") for name in ("TOKEN_FILE", "CA"))
    running.add_argument("--api-token-file", metavar="FILE", type=Path, help=said, default=token_file or None)
    said = "file with the CA of an https:// --api, in place of the system's (MENURA_API_CA)"
    running.add_argument("--api-ca", metavar="FILE", type=Path, help=said, default=ca or None)
    running.add_argument("--name", metavar="NAME", help="the lake's, unique among lakes (default: of host and lake)")
    add_metrics_arguments(running)
    running.add_argument("--traces", metavar="URL", help="send OpenTelemetry traces of changes there, by OTLP/HTTP")
    running.add_argument("--log-format", choices=log_format.FORMATS, help=log_format.HELP)
    running.add_argument(
        "--keep-hours",
        type=int,
        default=KEEP_HOURS,
        metavar="N",
        help="old versions of tables stay readable so long, then their files are removed (default: %(default)s)",
    )
    running.add_argument(
        "--keep-changelog",
        metavar="[TABLES=]LIMIT",
        action="append",
        default=[],
        help="how much of changelogs stays: 48h, 30d, 1000000rows or forever (default: forever), of all tables or of"
        " those that fit TENANT/SOURCE/DATABASE.TABLE with * and ?; repeatable, the last one that fits counts",
    )
    running.add_argument(
        "--schema-changes",
        metavar="[TABLES=]POLICY",
        action="append",
        default=[],
        help=f"what becomes of changes of tables' definitions: {', '.join(SchemaPolicy)} (default: evolve), of all"
        " tables or of those that fit TENANT/SOURCE/DATABASE.TABLE with * and ?; repeatable, the last one that fits"
        " counts",
    )
    running.add_argument(
        "--table-options",
        metavar="[TABLES=]OPTIONS",
        action="append",
        default=[],
        help=f"what current states have beyond their sources' rows: {', '.join(OPTIONS)}, with commas between, or"
        f" {NO_OPTION} (default), of all tables or of those that fit TENANT/SOURCE/DATABASE.TABLE with * and ?;"
        " repeatable, the last one that fits counts",
    )
    running.add_argument(
        "--table-folders",
        metavar="[REGEX=]TEMPLATE",
        action="append",
        default=[],
        help="where in the lake new tables stand, e.g. '{database}/{table}' or '.*/shop[.](?P<name>.*)=sales/{name}'"
        " (default: {tenant}/{source}/{database}/{table}), of all tables or of those whose TENANT/SOURCE/DATABASE.TABLE"
        " the regular expression fits; a table that is there stays where it is; repeatable, the last one that fits"
        " counts",
    )
    running.add_argument(
        "--merge-seconds",
        type=float,
        default=MERGE_SECONDS,
        metavar="N",
        help="changes of a table of more than 4 MiB wait so long in its changelog before they are merged, or two"
        " seconds for each MiB that it has, if that is longer; 0: they do not wait (default: %(default)s)",
    )
    running.add_argument(
        "--merge-beside-batches",
        action="store_true",
        help="merge tables of more than 16 MiB, or 500,000 rows, beside batches, which go on meanwhile, unless the sink"
        " runs to an end",
    )
    running.add_argument(
        "--views",
        metavar="FILE",
        type=Path,
        help="definitions of views, a JSON document that is read again when it changes; without it the control plane's",
    )
    running.add_argument(
        "--view-stores",
        metavar="FOLDER",
        default=default_folder(),
        help="folder on each machine's own disk for copies of views' large tables, by key, which are made again from"
        " the lake when they are lost; '': views scan their tables (default: menura-view-stores-UID among temporary"
        " files)",
    )
    trigger = running.add_mutually_exclusive_group()
    trigger.add_argument(
        "--trigger-seconds", type=float, default=1.0, metavar="N", help="a micro-batch at most each N seconds"
    )
    trigger.add_argument("--available-now", action="store_true", help="do what the log holds now, then end")
    return found


def settings_of(arguments: argparse.Namespace) -> SinkSettings:
    _check_least("--trigger-seconds", arguments.trigger_seconds, 0, "seconds")
    _check_least("--keep-hours", arguments.keep_hours, 1, "hours")
    _check_least("--merge-seconds", arguments.merge_seconds, 0, "seconds")
    keep_changelogs = _rules(
        "--keep-changelog", KeepRules.parse, arguments.keep_changelog, "30d or acme/shop/shop.orders=24h"
    )
    schema_changes = _rules(
        "--schema-changes", SchemaRules.parse, arguments.schema_changes, "lenient or acme/shop/shop.orders=exception"
    )
    table_options = _rules(
        "--table-options",
        OptionRules.parse,
        arguments.table_options,
        "commit_time or acme/shop/shop.orders=soft_delete,commit_time",
    )
    table_folders = _rules(
        "--table-folders",
        FolderRules.parse,
        arguments.table_folders,
        "'{database}/{table}' or 'acme/shop/shop[.](?P<name>.*)=sales/{name}'",
    )
    use_options(arguments.storage_option)
    if arguments.views is not None:
        ViewsFile(arguments.views).read()
    landing, lake = (absolute(url) for url in (arguments.landing, arguments.lake))
    if "%" in lake:
        raise SinkSettingInvalid(
            "reading the arguments", f"--lake {lake} has a '%', which Delta's readers decode", remedy="Choose another"
        )
    return SinkSettings(
        landing=landing,
        lake=lake,
        checkpoint=absolute(arguments.checkpoint or f"{lake}/{FOLDER}/checkpoint"),
        trigger_seconds=arguments.trigger_seconds,
        available_now=arguments.available_now,
        keep_hours=arguments.keep_hours,
        waiting=Waiting(arguments.merge_seconds),
        detached_bytes=DETACHED_BYTES if arguments.merge_beside_batches else None,
        keep_changelogs=keep_changelogs,
        schema_changes=schema_changes,
        table_options=table_options,
        table_folders=table_folders,
        views=str(arguments.views or ""),
        view_stores=arguments.view_stores and str(Path(arguments.view_stores).absolute()),
    )


def _check_least(option: str, given: float, least: int, unit: str) -> None:
    if given < least:
        raise SinkSettingInvalid("reading the arguments", f"{option} {given}", remedy=f"Give {least} or more {unit}")


def _rules(option: str, parse: Callable[[list[str]], T], words: list[str], example: str) -> T:
    try:
        return parse(words)
    except ValueError as wrong:
        raise SinkSettingInvalid("reading the arguments", f"{option} {wrong}", remedy=f"Give e.g. {example}") from wrong


def conf_of(words: Sequence[str]) -> dict[str, str]:
    settings = dict(word.split("=", 1) for word in words if word.startswith("spark.") and "=" in word)
    if len(settings) != len(words):
        wrong = next(
            (word for word in words if word.partition("=")[0] not in settings), "a setting that is there twice"
        )
        raise SinkSettingInvalid("reading the arguments", f"--conf {wrong}", remedy="Give spark.KEY=VALUE, each once")
    return settings
