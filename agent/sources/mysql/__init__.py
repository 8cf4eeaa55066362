"""MySQL and MariaDB. A folder uses only those behind it: `stream`, `snapshot`, `schema`, `server`, `ddl`, `log`."""
