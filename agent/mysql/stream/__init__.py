"""The binlog stream: which transactions count for which table, when a cut ends, what the gateway hears."""
