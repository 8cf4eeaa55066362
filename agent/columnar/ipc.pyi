"""Types of the compiled encoder; the .pyx says how it works."""

from agent.columnar.arrow import ArrowColumns

COMPRESSION_LEVEL: int

def encode(columns: ArrowColumns) -> bytes: ...
