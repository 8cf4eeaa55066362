"""The first copy of tables: how they are read, chunk by chunk, beside the stream of their changes."""
