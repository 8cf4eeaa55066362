"""Of a table with system versioning: the current rows alone, as its SELECT * shows them.

Comes in: landed or logged rows, and the column that says until when each was current. Goes out: those that still are. A
former version never was, or no longer is, a row of the current state, whatever its change says; the changelog has it.
The end of a row comes as an update whose postimage is a former version, and whose preimage takes the row away.
"""

import pyarrow as pa
import pyarrow.compute as pc
from menura.row_versions import CURRENT_NUMBER, CURRENT_US


def current_versions(rows: pa.Table, row_end: str) -> pa.Table:
    """Rows whose end is open, or not known."""
    names = [name.lower() for name in rows.column_names]
    ends = rows.column(names.index(row_end.lower()))
    if pa.types.is_timestamp(ends.type):
        is_open = pc.is_in(ends.cast(pa.int64()), pa.array(CURRENT_US, pa.int64()))
    else:  # it lands as uint64
        is_open = pc.equal(
            ends.cast(pa.decimal128(20, 0)), pa.scalar(CURRENT_NUMBER, pa.uint64()).cast(pa.decimal128(20, 0))
        )
    return rows.filter(pc.or_(ends.is_null(), is_open.fill_null(True)))
