"""The lake's tables: changelog, current state and the sink's own records, as Delta."""
