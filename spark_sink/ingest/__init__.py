"""Ingest: one Structured Streaming query over the cut log, and what its tasks do with a table."""
