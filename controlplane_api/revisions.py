"""Which revision the control plane's database has, and its way to the newest.

Comes in: a connection in a transaction that writes. Goes out: the newest schema, in that transaction, so that a kill
leaves the former one. A new file of SQLite gets it from `newest_sqlite.sql`, which has what all migrations together
make (`python -m tests.newest_schema` writes it, tests/controlplane_api/test_database.py compares). All else migrates by
Alembic, which is imported then alone: with its dialects and templates it takes as long as the rest of a gateway's
imports, and nearly each start finds the newest revision.
"""

import re
from importlib.resources import files

from sqlalchemy import Connection, Engine, inspect, text

_MIGRATIONS = files("controlplane_api") / "migrations"
_SCRIPT = re.compile(r"rev_(\d{4})_\w+\.py")
#: a line that no statement has
SEPARATOR = "\n--\n"


def newest_revision() -> str:
    """By the names of the migrations' files."""
    names = (path.name for path in (_MIGRATIONS / "versions").iterdir())
    return max(found[1] for name in names if (found := _SCRIPT.fullmatch(name)))


def is_newest(connection: Connection) -> bool:
    if not inspect(connection).has_table("alembic_version"):
        return False
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalars().all() == [newest_revision()]


def prepare(engine: Engine) -> None:
    """Before `bring_to_newest`, and in no transaction: what takes long and need not keep others waiting."""
    if engine.dialect.name == "postgresql":
        from controlplane_api import migrating  # noqa: PLC0415  (see above)

        migrating.build_indexes(engine)


def bring_to_newest(connection: Connection) -> None:
    """Another process may have, while this one waited to write. Raises `DatabaseTooNew`."""
    if is_newest(connection):
        return
    if connection.dialect.name == "sqlite" and not inspect(connection).get_table_names():
        for statement in (_MIGRATIONS / "newest_sqlite.sql").read_text("utf-8").split(SEPARATOR):
            connection.exec_driver_sql(statement)
    else:
        from controlplane_api import migrating  # noqa: PLC0415  (see above)

        migrating.upgrade(connection)
