"""`make bench-postgresql`: reading a PostgreSQL's changes, and a table, beside peers."""
