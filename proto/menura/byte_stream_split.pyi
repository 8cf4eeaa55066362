"""Types of the compiled module; the .pyx says what it does."""

WIDTHS: frozenset[int]

# Anything that has the buffer protocol; `values` is writable and not the same memory.
def join(split: object, values: object, width: int) -> None: ...
def join_texts(offsets: object, split: object, values: object) -> None: ...
