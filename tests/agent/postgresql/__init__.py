"""PostgreSQL as a source, on real servers."""
