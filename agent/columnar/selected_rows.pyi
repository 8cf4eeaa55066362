"""Types of what all readers of result sets have in common; the .pyx says how they work."""

class SelectedRows:
    """Collects the rows of a SELECT."""

    rows: int  # read so far
    @property
    def batch_row_count(self) -> int: ...  # not taken yet
