"""Types of the compiled encoder; the .pyx says how it works."""

from agent.columnar.arrow import ArrowColumns

def encode(columns: ArrowColumns) -> bytes: ...
