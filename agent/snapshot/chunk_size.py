"""How many rows the next chunk asks for, so that it takes about as long as it should.

A chunk of a second loses little when it is read again, and lets a throttle, a pause or an ALTER of the table in soon.
"""

LEAST_ROWS = 1_000
MOST_ROWS = 1_000_000
#: of a chunk where even LEAST_ROWS have more
MOST_BYTES = 64 << 20
FIRST_BYTES = 4 << 20
_UNKNOWN_ROW_BYTES = 256


class ChunkSize:
    """Of one worker's walk through a table."""

    def __init__(self, aim_seconds: float, most_rows: int, row_bytes: int | None = None) -> None:
        """`row_bytes`: of an average row, by the server's statistics."""
        self._aim_seconds = aim_seconds
        self._most_rows = most_rows
        #: of an average row
        self.row_bytes: float = row_bytes or _UNKNOWN_ROW_BYTES
        self.rows = self._clamped(FIRST_BYTES / self.row_bytes, LEAST_ROWS)

    def took(self, rows: int, size_bytes: int, seconds: float) -> None:
        """The last chunk; `seconds` without those for which the throttle held it."""
        if not rows:
            return
        self.row_bytes = max(1.0, size_bytes / rows)
        least = min(LEAST_ROWS, max(1, int(MOST_BYTES * rows / max(1, size_bytes))))
        fitting = rows * self._aim_seconds / max(seconds, 1e-6)
        # a chunk with fewer rows than asked for ended its range, and says little about a whole one
        if rows < self.rows:
            fitting = max(fitting, self.rows / 2) if seconds >= self._aim_seconds else self.rows
        self.rows = self._clamped(min(max(fitting, self.rows / 2), self.rows * 2), least)

    def _clamped(self, rows: float, least: int) -> int:
        return int(min(max(rows, least), self._most_rows, MOST_ROWS))
