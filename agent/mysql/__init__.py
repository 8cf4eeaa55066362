"""MySQL and MariaDB sources. A folder uses only those behind it: `stream`, `dump`, `schema`, `server`, `ddl`, `log`."""
