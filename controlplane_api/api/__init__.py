"""The API: REST, the queries that answer it, and the dashboard."""
