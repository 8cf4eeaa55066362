"""MySQL and MariaDB: connection, binlog stream, positions, schema, cartography."""
