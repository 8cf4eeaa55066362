"""DDL as the servers read it: statements in, definitions of tables out, with no server at hand."""
