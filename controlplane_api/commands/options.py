"""What several commands share: options, the form of a group with one command, how values look in a terminal.

Each command with --api gets --token-file and --ca too (`add_shared_options`): `access.connect` takes what they name.
Each with --json gets --output, of which --json is the older name of one.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, get_type_hints

import typer
from menura import log_format
from menura.instants import instant_text
from rich.console import Console, RenderableType

from controlplane_api.errors import RequestInvalid

DATABASE_HELP = "sqlite:///FILE or postgresql://USER:PASSWORD@HOST:PORT/DATABASE."

Api = Annotated[str, typer.Option("--api", envvar="MENURA_API", help="Address of the API.")]
Tenant = Annotated[str, typer.Option("--tenant", envvar="MENURA_TENANT", help="Whose agents and sources.")]
Fleet = Annotated[bool, typer.Option("--fleet", help="Of the whole fleet, in place of a tenant.")]
AsJson = Annotated[bool, typer.Option("--json", help="The same as --output json.")]


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", envvar="MENURA_OUTPUT", help="table, or the API's own answer.")
]

TokenFile = Annotated[
    Path | None, typer.Option("--token-file", envvar="MENURA_API_TOKEN_FILE", help="File with a token of the API.")
]
Ca = Annotated[
    Path | None,
    typer.Option("--ca", envvar="MENURA_API_CA", help="File with the CA of an https:// API, if not the system's."),
]


class LogFormat(StrEnum):
    TEXT = log_format.TEXT
    JSON = log_format.JSON


LogFormatOption = Annotated[
    LogFormat | None, typer.Option("--log-format", envvar=log_format.VARIABLE, help="Form of log lines.")
]


def use_log_format(asked: LogFormat | None) -> None:
    log_format.use(asked)


Force = Annotated[bool, typer.Option("--force", help="Dump although the server may not keep its log long enough.")]


@dataclass(slots=True)
class AccessFiles:
    token_file: Path | None = None
    ca: Path | None = None


@dataclass(slots=True)
class Form:
    output: Output = Output.TABLE


#: of the command that this process runs
access = AccessFiles()
form = Form()

DEFAULT_API = "http://127.0.0.1:7080"
DEFAULT_TENANT = "default"

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

UNWRAPPED_WIDTH = 10_000
UNKNOWN = "–"  # noqa: RUF001  (a dash, as in a table)


def add_shared_options(app: typer.Typer) -> None:
    """To each command that asks the API, or prints what it says: Typer makes options of a function's signature."""
    for known in (app.registered_callback, *app.registered_commands):
        if known is not None and known.callback is not None:
            parameters = inspect.signature(known.callback).parameters
            if "api" in parameters and "token_file" not in parameters:
                known.callback = _with(known.callback, {"token_file": (TokenFile, None), "ca": (Ca, None)})
            if "as_json" in parameters and "output" not in parameters:
                known.callback = _with(known.callback, {"output": (OutputOption, Output.TABLE)})


def _with(command: Callable[..., object], added: Mapping[str, tuple[object, object]]) -> Callable[..., object]:
    """The command with further options, each an annotation and a default: `_take` has what they say."""

    @wraps(command)
    def run(**options: object) -> object:
        _take({name: options.pop(name) for name in added}, options)
        return command(**options)

    own = inspect.signature(command)
    hints = get_type_hints(command, include_extras=True) | {name: hint for name, (hint, _) in added.items()}
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [each.replace(annotation=hints[each.name]) for each in own.parameters.values()]
    parameters += [
        inspect.Parameter(name, kind, default=default, annotation=hint) for name, (hint, default) in added.items()
    ]
    run.__annotations__ = hints
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def _take(added: Mapping[str, object], options: dict[str, object]) -> None:
    if "output" in added:
        form.output = Output.JSON if options["as_json"] else Output(str(added["output"]))
        options["as_json"] = form.output is not Output.TABLE
    else:
        token_file, ca = added["token_file"], added["ca"]
        access.token_file = token_file if isinstance(token_file, Path) else None
        access.ca = ca if isinstance(ca, Path) else None


def seconds_of(ttl: str, most_seconds: int, option: str = "--ttl") -> int:
    """Of 30m, 1h, 2d. Raises `RequestInvalid`.

    >>> seconds_of("2h", 86_400)
    7200
    """
    match = re.fullmatch(r"([0-9]{1,7})([smhd])", ttl)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < seconds <= most_seconds:
        days = most_seconds // 86_400
        raise RequestInvalid(f"reading {option}", repr(ttl), remedy=f"Give 30m, 1h or 2d, and at most {days}d.")
    return seconds


def put(*shown: RenderableType) -> None:
    """As wide as the terminal; what goes elsewhere is not wrapped, so that each line can be searched for."""
    console = Console()
    for each in shown:
        console.print(each, width=None if console.is_terminal else UNWRAPPED_WIDTH)


def forced_group(text: str) -> typer.Typer:
    """An app whose commands are named even while there is only one."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
    app.callback(help=text)(lambda: None)
    return app


def single_command() -> typer.Typer:
    return typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def plain(text: str) -> str:
    """A name from outside, fit for a terminal: no control character reaches it.

    >>> plain("a\\x1b[2Jb")
    'a\\ufffd[2Jb'
    """
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


def duration(microseconds: int | None) -> str:
    """
    >>> duration(1_500), duration(90_000_000), duration(None)
    ('1.5 ms', '1.5 min', '–')
    """  # noqa: RUF002
    if microseconds is None:
        return UNKNOWN
    for unit, size in (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000)):
        if microseconds >= size:
            return f"{microseconds / size:.1f} {unit}"
    return f"{microseconds / 1000:.1f} ms"


def moment(at_us: int | None) -> str:
    """
    >>> moment(1_700_000_000_000_000), moment(None)
    ('2023-11-14 22:13:20Z', '–')
    """  # noqa: RUF002
    return UNKNOWN if at_us is None else instant_text(at_us)


def size(number: float | None) -> str:
    """
    >>> size(2048), size(None)
    ('2.0 KiB', '–')
    """  # noqa: RUF002
    if number is None:
        return UNKNOWN
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if number < 1024:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} PiB"


def count(number: float | None) -> str:
    return UNKNOWN if number is None else f"{number:,.0f}"
