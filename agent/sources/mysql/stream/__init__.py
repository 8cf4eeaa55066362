"""The binlog stream: which transactions count for which table, and what its events mean."""
