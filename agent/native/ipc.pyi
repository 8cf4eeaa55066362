"""Types of the compiled encoder; the .pyx says how it works."""

from agent.native.decoder import ArrowColumns

def encode(columns: ArrowColumns) -> bytes: ...
