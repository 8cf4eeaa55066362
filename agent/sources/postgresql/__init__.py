"""PostgreSQL. A folder uses only those behind it: `stream`, `snapshot`, `server`."""
