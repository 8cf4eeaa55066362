"""What a server is and says: connections, catalogs, its slots and publications, and its WAL as a subscriber gets it."""
