"""What each kind of stream is for, by its RequestType: control, the client with its dumps, replication."""
