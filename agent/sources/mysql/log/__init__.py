"""The format of the binary log, as far as Python reads it: events, table maps, charsets. Bytes in, values out."""
