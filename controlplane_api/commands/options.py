"""What several commands share: options, the form of a group with one command, how values look in a terminal.

Each command with --api gets --token-file and --ca too (`add_access_options`): `access.connect` takes what they name.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, get_type_hints

import typer
from menura.instants import instant_text
from rich.console import Console, RenderableType

from controlplane_api.errors import RequestInvalid

DATABASE_HELP = "sqlite:///FILE or postgresql://USER:PASSWORD@HOST:PORT/DATABASE."

Api = Annotated[str, typer.Option("--api", envvar="MENURA_API", help="Address of the API.")]
Tenant = Annotated[str, typer.Option("--tenant", envvar="MENURA_TENANT", help="Whose agents and sources.")]
Fleet = Annotated[bool, typer.Option("--fleet", help="Of the whole fleet, in place of a tenant.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the API's own JSON.")]

TokenFile = Annotated[
    Path | None, typer.Option("--token-file", envvar="MENURA_API_TOKEN_FILE", help="File with a token of the API.")
]
Ca = Annotated[
    Path | None,
    typer.Option("--ca", envvar="MENURA_API_CA", help="File with the CA of an https:// API, if not the system's."),
]

Force = Annotated[bool, typer.Option("--force", help="Dump although the server may not keep its log long enough.")]


@dataclass(slots=True)
class AccessFiles:
    token_file: Path | None = None
    ca: Path | None = None


#: of the command that this process runs
access = AccessFiles()

DEFAULT_API = "http://127.0.0.1:7080"
DEFAULT_TENANT = "default"

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

UNWRAPPED_WIDTH = 10_000
UNKNOWN = "–"  # noqa: RUF001  (a dash, as in a table)


def add_access_options(app: typer.Typer) -> None:
    """To each command that asks the API: Typer makes options of what a function's signature says."""
    for known in (app.registered_callback, *app.registered_commands):
        if known is not None and known.callback is not None:
            parameters = inspect.signature(known.callback).parameters
            if "api" in parameters and "token_file" not in parameters:
                known.callback = _with_access(known.callback)


def _with_access(command: Callable[..., object]) -> Callable[..., object]:
    @wraps(command)
    def run(*, token_file: Path | None, ca: Path | None, **options: object) -> object:
        access.token_file, access.ca = token_file, ca
        return command(**options)

    hints = get_type_hints(command, include_extras=True) | {"token_file": TokenFile, "ca": Ca}
    own = inspect.signature(command).parameters.values()
    kind = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter(name, kind, default=None, annotation=hints[name]) for name in ("token_file", "ca")]
    run.__annotations__ = hints
    run.__signature__ = inspect.Signature([*(each.replace(annotation=hints[each.name]) for each in own), *added])  # type: ignore[attr-defined]
    return run


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
