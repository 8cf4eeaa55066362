"""What each kind of stream is for, by its role: control, the catalog with its dumps, replication."""
