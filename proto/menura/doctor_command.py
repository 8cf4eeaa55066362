"""`menura doctor`: looks at whatever part of Menura the command line names, and says what is wrong and what mends it.

A part registers itself as an entry point of `menura.doctor.GROUP`; one whose packages are not installed says which.
"""

import argparse
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from menura import output
from menura.completion import of_parser
from menura.distributions import entry_points
from menura.doctor import GROUP, Asked, Finding, Part, Result, exit_code
from menura.errors import MenuraError, printable

EXIT_CODES = """exit codes: 0 all is well; 1 something is to be looked at, or could not be checked; 2 something is
wrong that keeps data from coming or lets it be lost, or the command line is. Nothing is changed anywhere, but for an
empty file that is put into landing and lake and removed again."""
#: where the agent's packages have it; looked at where the command line names nothing
PACKAGED_CONFIG = "/etc/menura/agent.yaml"
_WORDS = {Result.OK: "ok", Result.WARNING: "warning", Result.FAILED: "FAILED", Result.UNKNOWN: "unknown"}
_INDENT = " " * 9


def main() -> int:
    """Returns the exit code."""
    parser = _parser()
    arguments = parser.parse_args()
    asked = Asked(
        arguments.config, arguments.database, arguments.landing, arguments.lake, arguments.api,
        tuple(arguments.storage_option), tuple(arguments.listen),
    )  # fmt: skip
    if not any((asked.config, asked.database, asked.landing, asked.lake)):
        if not Path(PACKAGED_CONFIG).is_file():
            parser.error(
                "name what is to be looked at: on a database's host --config FILE, on the receiving side "
                f"--database URL, --landing URL and --lake URL. Without any of them it takes "
                f"{PACKAGED_CONFIG}, which is not here"
            )
        asked = replace(asked, config=PACKAGED_CONFIG)
    try:
        findings = [finding for part in parts(asked) for finding in part(asked)]
    except ModuleNotFoundError as missing:
        found = f"the package {missing.name} is not installed; install menura[agent], menura[gateway] or menura[spark]"
        print(f"menura doctor: {found}", file=sys.stderr)
        return 2
    except MenuraError as error:
        print(f"menura doctor: {error}", file=sys.stderr)
        return 2
    if arguments.output == output.TABLE:
        print("\n".join(lines(findings, every=arguments.all)))
    else:
        print(document(findings, arguments.output))
    return exit_code(findings)


def completions() -> dict[tuple[str, ...], list[str]]:
    """Of its word: see `menura.completion`."""
    return of_parser(("doctor",), _parser())


def parts(asked: Asked) -> Iterator[Part]:
    """Those of which the command line names something; no other is imported."""
    wanted = {
        "agent": asked.config,
        "controlplane_api": asked.database or asked.landing or asked.listen,
        "spark_sink": asked.lake,
    }
    for point in sorted(entry_points(GROUP), key=lambda point: point.name):
        if wanted.get(point.name):
            yield point.load()


def document(findings: Sequence[Finding], form: str) -> str:
    """JSON or YAML."""
    found = {"exit_code": exit_code(findings), "findings": [asdict(finding) for finding in findings]}
    return output.document(found, form)


def lines(findings: Sequence[Finding], *, every: bool = False, width: int = 0) -> Iterator[str]:
    """For a terminal: the worst of each part first, without what is well unless `every`. A fix stays one line."""
    width = width or min(shutil.get_terminal_size().columns, 120)
    worst = [Result.FAILED, Result.WARNING, Result.UNKNOWN, Result.OK]
    for part in dict.fromkeys(finding.part for finding in findings):
        of_part = [finding for finding in findings if finding.part == part]
        shown = [finding for finding in of_part if every or finding.result is not Result.OK]
        yield f"{printable(part)}: {_counted(of_part)}"
        for finding in sorted(shown, key=lambda each: worst.index(each.result)):
            yield from _paragraph(finding, width)
    yield f"{len(findings)} checks: {_counted(findings)}"


def _paragraph(finding: Finding, width: int) -> Iterator[str]:
    head = f"{_WORDS[finding.result]:<9}{finding.check}: {printable(finding.found)}"
    yield from textwrap.wrap(head, width, subsequent_indent=_INDENT)
    if finding.result is Result.OK:
        return
    yield from textwrap.wrap(finding.why, width, initial_indent=_INDENT, subsequent_indent=_INDENT)
    if finding.fix:
        yield f"{_INDENT}{printable(finding.fix)}"


def _counted(findings: Iterable[Finding]) -> str:
    """
    >>> _counted([Finding("", "", result, "", "", "") for result in (Result.OK, Result.OK, Result.FAILED)])
    '2 ok, 1 failed'
    """
    results = [finding.result for finding in findings]
    counts = ((result, results.count(result)) for result in Result)
    return ", ".join(f"{number} {result}" for result, number in counts if number)


def _parser() -> argparse.ArgumentParser:
    what = "Look at this host's part of Menura: what is wrong, why it matters, and what mends it."
    parser = argparse.ArgumentParser(prog="menura doctor", description=what, epilog=EXIT_CODES)
    parser.add_argument(
        "--config", metavar="FILE", default="", help="the agent's YAML file: its host, gateway, servers"
    )
    parser.add_argument("--database", metavar="URL", default="", help="the control plane's")
    parser.add_argument("--landing", metavar="URL", default="", help="what the gateway's --landing names")
    parser.add_argument("--lake", metavar="URL", default="", help="what the sink's --lake names")
    option = "how to reach a landing or lake that is a URL; repeatable"
    parser.add_argument("--storage-option", metavar="KEY=VALUE", action="append", default=[], help=option)
    listen = "where something of the receiving side shall listen that does not run yet; repeatable"
    parser.add_argument("--listen", metavar="HOST:PORT", action="append", default=[], help=listen)
    parser.add_argument("--api", metavar="URL", default="", help="the control plane's API, to compare clocks with")
    output.add_option(parser)
    parser.add_argument("--all", action="store_true", help="show also what is well")
    return parser
