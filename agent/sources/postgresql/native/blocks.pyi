"""Types of the compiled reader of blocks; the .pyx says how it works."""

class BlockError(Exception): ...

def scan(data: bytes | bytearray | memoryview, at: int, in_block: bool, has_open: bool) -> tuple[int, str, int]:
    """Where the next frame to judge begins; its letter ('' where more bytes have to come, 'k' of any frame in a block
    that holds no change, '!' where the length is impossible); and how many bytes are missing of a frame whose beginning
    was stepped over."""

def unwrap(data: bytes | bytearray | memoryview, aborted: set[int]) -> tuple[bytearray, int, int]:
    """Frames as those of a version 1 stream, how many bytes were taken, and how many of the last frame are missing
    (negative where it is left out). Raises `BlockError`."""
