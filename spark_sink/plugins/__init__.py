"""Python classes that are told of each change of a lake's tables, transaction by transaction."""
