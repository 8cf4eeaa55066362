"""Migrations of the control plane's database, by Alembic (see `controlplane_api.revisions`).

An index of a large table is built before them on PostgreSQL, beside those who write to it (`build_indexes`). A kill
leaves it, or an invalid one, which the next start drops. Its migration finds it, or makes it.
"""

import time
from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.script.revision import ResolutionError
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, text

from controlplane_api.errors import DatabaseTooNew

#: PostgreSQL's advisory lock that a migration holds: "menura" in ASCII
MIGRATION_LOCK = 0x6D656E757261
#: the one that whoever builds indexes holds before it
_INDEX_LOCK = MIGRATION_LOCK + 1
_LOOK_SECONDS = 0.2
_AUDIT_INDEX = "ix_audit_tenant_id"


def alembic_config() -> Config:
    """Alembic's configuration of this package; the connection goes into its `attributes`."""
    config = Config()
    config.set_main_option("script_location", str(files("controlplane_api") / "migrations"))
    config.set_main_option("path_separator", "os")
    return config


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Bring the database to `revision`, within the caller's transaction. Raises `DatabaseTooNew`."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL lock_timeout = 0"))  # another process may migrate for as long as it takes
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
    config = alembic_config()
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, revision)
    except (CommandError, ResolutionError) as unknown:
        shown = connection.engine.url.set(query={}).render_as_string(hide_password=True)
        raise DatabaseTooNew(
            f"opening the database {shown}",
            f"its revision is not among those of this version ({unknown})",
            data="It was left as it is.",
            remedy="Run the version of Menura that wrote it, or a newer one.",
        ) from unknown


def build_indexes(engine: Engine) -> None:
    """What a migration would build while it locks the table; on PostgreSQL, in no transaction.

    Another process that builds is waited for by asking again and again: a statement that waits has a snapshot, for
    whose end the one that builds would wait.
    """
    if engine.dialect.name != "postgresql":
        return
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if connection.execute(text("SELECT to_regclass('audit')")).scalar() is None:
            return
        while not connection.execute(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": _INDEX_LOCK}).scalar():
            time.sleep(_LOOK_SECONDS)
        try:
            _build(connection)
        finally:
            connection.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": _INDEX_LOCK})


def _build(connection: Connection) -> None:
    named = {"name": _AUDIT_INDEX}
    is_valid = text("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)")
    found = connection.execute(is_valid, named).scalar()
    if found is True:
        return
    connection.execute(text("SET lock_timeout = 0"))  # of transactions that began before, however long they take
    try:
        if found is False:
            connection.execute(text(f"DROP INDEX CONCURRENTLY IF EXISTS {_AUDIT_INDEX}"))
        connection.execute(text(f"CREATE INDEX CONCURRENTLY {_AUDIT_INDEX} ON audit (tenant, id)"))
    finally:
        connection.execute(text("RESET lock_timeout"))
