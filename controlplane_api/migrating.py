"""Migrations of the control plane's database, by Alembic (see `controlplane_api.revisions`)."""

from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.script.revision import ResolutionError
from alembic.util import CommandError
from sqlalchemy import Connection, text

from controlplane_api.errors import DatabaseTooNew

#: PostgreSQL's advisory lock that a migration holds: "menura" in ASCII
MIGRATION_LOCK = 0x6D656E757261


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
