"""The first copy of tables, beside the stream of their changes: which dumps are read, in which chunks, and which cuts
name those. How a table is read is its source's."""
