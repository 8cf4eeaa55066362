"""Indexes in an OpenSearch cluster."""
