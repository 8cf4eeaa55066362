"""The REST paths, one module per thing they are about."""
