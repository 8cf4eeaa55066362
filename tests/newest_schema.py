"""The newest schema of SQLite, from the migrations: `python -m tests.newest_schema` writes its file anew."""

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from controlplane_api import revisions
from controlplane_api.database import existing_database
from controlplane_api.migrating import upgrade
from tests.servers import ROOT

FILE = ROOT / "controlplane_api" / "migrations" / "newest_sqlite.sql"


def migrated_schema() -> str:
    """The statements that make what all migrations make of an empty file of SQLite, in their order."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "control.db"
        file.touch()
        with closing(existing_database(f"sqlite:///{file}")) as database, database.write() as connection:
            upgrade(connection)
        with closing(sqlite3.connect(file)) as made:
            found = made.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid").fetchall()
    statements = [*(sql for (sql,) in found), f"INSERT INTO alembic_version VALUES ('{revisions.newest_revision()}')"]
    lines = revisions.SEPARATOR.join(statements).expandtabs(4).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


if __name__ == "__main__":
    FILE.write_text(migrated_schema(), "utf-8")
