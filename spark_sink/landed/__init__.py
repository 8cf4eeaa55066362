"""What the gateway landed, as the lake reads it: log entries, files, rows, columns, events."""
