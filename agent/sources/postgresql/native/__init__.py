"""The compiled core: bytes of a replication stream or of a SELECT in, Arrow columns out."""
