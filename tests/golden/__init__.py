"""Bytes of real servers' logs, kept beside the SQL that made them and the text that a SELECT printed.

``NAME.sql`` the statements, ``NAME.binlog`` the packets of the log file that they wrote, ``NAME.json`` the rows of the
table `t.golden` in the server's words. `python -m tests.golden` makes the two from the SQL anew.
"""

import json
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Golden:
    name: str
    #: packets, as received
    data: bytes
    #: rows of t.golden: the server's text of each column, None for NULL
    rows: list[dict[str, str | None]]

    @property
    def mariadb(self) -> bool:
        return self.name.startswith("mariadb")


def golden(name: str) -> Golden:
    return Golden(
        name,
        (FOLDER / f"{name}.binlog").read_bytes(),
        json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")),
    )


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.sql"))
