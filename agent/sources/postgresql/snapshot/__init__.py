"""How tables are read for dumps: keys, ranges, statements, and what a SELECT shows as a position of the log."""
