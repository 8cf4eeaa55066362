"""The databases that the control plane's tests run on: which kinds there are, and new ones of each.

A test that asks for a database runs once on each of `KINDS`. The half on PostgreSQL has the marker `needs_setup`, so
quick runs leave it out. Migrations take long, copies do not: a database of the newest revision is made once in a
process, and copied for each test.
"""

import shutil
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from controlplane_api.database import open_database
from tests.postgres import PostgreSQL

POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.needs_setup)
KINDS = ("sqlite", POSTGRESQL)

#: makes the URL of a new database
Fresh = Callable[[], str]


def sqlite_template(folder: Path) -> Path:
    """A file of the newest revision without a row."""
    file = folder / "control.db"
    open_database(f"sqlite:///{file}").close()
    return file


def sqlite_copies(template: Path, folder: Path) -> Fresh:
    numbers = count()
    return lambda: f"sqlite:///{shutil.copy(template, folder / f'control-{next(numbers)}.db')}"


def postgresql_template(server: PostgreSQL) -> str:
    """URL of a database of the newest revision without a row."""
    url = server.fresh_database()
    open_database(url).close()
    return url


def postgresql_copies(server: PostgreSQL, template: str) -> Fresh:
    return partial(server.fresh_database, template)
