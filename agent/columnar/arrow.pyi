"""Types of the exported columns; the .pyx says how they work."""

class ArrowColumns:
    """An Arrow struct array, exported without a copy; the rows live as long as any consumer holds them."""

    length: int
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...
    def release(self) -> None:
        """Let go of the rows, which nobody reads any more; what is left has no columns."""

def field(
    name: str, format_: str, nullable: bool, metadata: dict[str, str] | None = None
) -> tuple[bytes, bytes, bytes | None, bool]:
    """What an exported schema says of a column: (format, name, metadata, nullable), encoded."""
