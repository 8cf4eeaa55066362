"""The control plane, on SQLite and on PostgreSQL."""
