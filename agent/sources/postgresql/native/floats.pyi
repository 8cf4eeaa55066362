"""Types of the compiled reader of floating point numbers; the .pyx says how it works."""

def float8(text: bytes) -> float | None:
    """The number in the text of a double precision; None: it is none, or beyond the type."""

def float4(text: bytes) -> float | None:
    """The number in the text of a real; None: it is none, or beyond the type."""
