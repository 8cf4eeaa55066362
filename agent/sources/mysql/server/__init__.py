"""What a server is and says: connections, catalogs, the state of its log, and the log itself as a replica gets it."""
