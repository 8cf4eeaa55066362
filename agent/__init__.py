"""The agent: runs beside the database, dials out, decodes, filters and pushes. Read `pipeline` first."""
