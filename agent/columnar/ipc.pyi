"""Types of the compiled encoder; the .pyx says how it works."""

from menura.change_batch import Compression

from agent.columnar.arrow import ArrowColumns

def encode(columns: ArrowColumns, compression: Compression) -> bytes: ...
