"""`make demo`: the whole product on one machine, from a change in MariaDB to a row in the lake."""
