"""Ways out of the lake: its changes as messages of Debezium's form."""
