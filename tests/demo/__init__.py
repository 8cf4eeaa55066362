"""`make demo`: the whole product on one machine, from a change in a database to a row in the lake."""
