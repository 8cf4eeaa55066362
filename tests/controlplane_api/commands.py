"""`menura WORD ...` in this process: a process of its own takes a second or more to import what it needs."""

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

from menura import cli


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def menura(word: str, *arguments: str, **environment: str) -> Done:
    """What the command would have printed, and its exit code."""
    out, err = io.StringIO(), io.StringIO()
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        patch("sys.argv", ["menura", word, *arguments]),
        patch.dict("os.environ", {"COLUMNS": "200", **environment}),
    ):
        try:
            code = cli.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Done(code, out.getvalue(), err.getvalue())
