"""PostgreSQL in the matrix."""
