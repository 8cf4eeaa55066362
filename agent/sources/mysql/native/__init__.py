"""The compiled core: bytes of a binlog stream in, Arrow columns out."""
