"""MySQL and MariaDB. A folder uses only those behind it: `stream`, `snapshot`, `schema`, `server`, `ddl`, `log`."""

from agent.sources.mysql import login_library  # noqa: F401  (before anything here imports PyMySQL)
