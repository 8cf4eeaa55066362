"""What several commands share: options, the form of a group with one command, how values look in a terminal."""

from typing import Annotated

import typer
from menura.instants import instant_text
from rich.console import Console, RenderableType

DATABASE_HELP = "sqlite:///FILE or postgresql://USER:PASSWORD@HOST:PORT/DATABASE."

Api = Annotated[str, typer.Option("--api", envvar="MENURA_API", help="Address of the API.")]
Tenant = Annotated[str, typer.Option("--tenant", envvar="MENURA_TENANT", help="Whose agents and sources.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the API's own JSON.")]

Force = Annotated[bool, typer.Option("--force", help="Dump although the server may not keep its log long enough.")]

DEFAULT_API = "http://127.0.0.1:7080"
DEFAULT_TENANT = "default"

UNWRAPPED_WIDTH = 10_000
UNKNOWN = "–"  # noqa: RUF001  (a dash, as in a table)


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
