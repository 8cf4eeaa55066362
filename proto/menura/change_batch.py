"""Change-batch columns: what stands before and after a table's own columns.

On the wire (agent to gateway) a batch is two Arrow IPC streams, each a frame of a `Compression`, so that what is equal
for all rows of a transaction travels once:

``rows``          _change_type int8 (a `ChangeType`), _gsn int64, _transaction int32, the table's
                  columns, _unrepresentable utf8; then _absent binary, only where some row is partial
``transactions``  _transaction_id int64, _commit_timestamp_us int64, _position utf8;
                  a row's ``_transaction`` is the row number here

A stream whose schema has the metadata `METADATA_LAYOUT` = `LAYOUT_SPLIT` is Arrow IPC but for this: the values of a
fixed-width column, and the offsets of a variable one, of more than one byte stand split: the first bytes of all, then
all second bytes, and so on (Parquet's BYTE_STREAM_SPLIT; `menura.byte_stream_split`). What differs little from row to
row then takes half the time to compress and a fraction of the bytes. Without it the buffers are Arrow's own.

In a split stream, `METADATA_SPLIT_TEXTS` names columns whose texts stand split too, all of one length: of codes and
numbered names, bytes at the same place are nearly equal.

In landing (gateway to lake) one Parquet row holds all of it: _change_type utf8 (dictionary), _gsn int64,
_transaction_id int64, _commit_timestamp_us int64, _position utf8 (dictionary), the table's columns,
_unrepresentable utf8, _absent binary (dictionary).

``_absent`` is null for a whole row. Else it holds a bit per column of the table in the order of the batch, least
significant first, in as many bytes as that takes: 1 where the log did not carry the column's value, which is then
null here and unknown, not NULL. What an update's after image lacks and its before image has is filled in by the agent,
since such a column has not changed.

An insert's absent column holds its default, which the field's metadata tells where it is the same for all rows. The
metadata of `_absent` itself may tell how to have whole rows: `METADATA_WHOLE_ROWS`.

A table's own column is called `landed_column` of its name; ``_unrepresentable`` calls it by its name in the source. It
keeps its Arrow field metadata on the way: `METADATA_SOURCE_TYPE`, in a primary key `METADATA_KEY`, of a table with
system versioning `METADATA_ROW_END`, and `METADATA_DEFAULT` where the agent knows it.
"""

from enum import IntEnum, StrEnum

CHANGE_TYPE = "_change_type"
GSN = "_gsn"
TRANSACTION = "_transaction"
TRANSACTION_ID = "_transaction_id"
COMMIT_TIMESTAMP_US = "_commit_timestamp_us"
POSITION = "_position"
UNREPRESENTABLE = "_unrepresentable"
ABSENT = "_absent"

#: name and Arrow format, in order
WIRE_ROW_COLUMNS = ((CHANGE_TYPE, "c"), (GSN, "l"), (TRANSACTION, "i"))
WIRE_TRANSACTION_COLUMNS = ((TRANSACTION_ID, "l"), (COMMIT_TIMESTAMP_US, "l"), (POSITION, "u"))
LANDED_COLUMNS = (CHANGE_TYPE, GSN, TRANSACTION_ID, COMMIT_TIMESTAMP_US, POSITION)

#: no column of a table has one of these names on the way, compared without case, nor one with `RESERVED_PREFIX`: see
#: `landed_column`
RESERVED_NAMES = frozenset(
    {CHANGE_TYPE, GSN, TRANSACTION, TRANSACTION_ID, COMMIT_TIMESTAMP_US, POSITION, UNREPRESENTABLE, ABSENT}
)

RESERVED_PREFIX = "_menura_"


class Compression(StrEnum):
    """Of rows on the wire; a frame's first bytes tell which it is."""

    LZ4 = "lz4"
    ZSTD = "zstd"


#: Arrow field metadata of a table's column: `str(ColumnType)` of its source type
METADATA_SOURCE_TYPE = "menura.source_type"
#: its place in the primary key, from "1"; absent outside of it
METADATA_KEY = "menura.key"
#: "1" of the column that says until when a row was current; absent of all others; see `menura.row_versions`
METADATA_ROW_END = "menura.row_end"
#: what an insert that does not name the column stores: `NULL_DEFAULT`, or LITERAL_DEFAULT and a literal of
#: `menura.types`, or UNREPRESENTABLE_DEFAULT and the source's own text of what its Arrow type can't hold
METADATA_DEFAULT = "menura.default"
NULL_DEFAULT = "null"
LITERAL_DEFAULT = ":"
UNREPRESENTABLE_DEFAULT = "!"
#: of landings up to format 5: the text in which MySQL and MariaDB print it (of binary kinds in hex, of BIT in decimal
#: digits)
TEXT_DEFAULT = "="

#: of `_absent`: what to do at the source so that its log has all values of each row, as a sentence without its full
#: stop; in landing it is the file's own. Who can't use a row that lacks values says it.
METADATA_WHOLE_ROWS = "menura.whole_rows"

#: Arrow schema metadata of a stream
METADATA_LAYOUT = "menura.layout"
LAYOUT_SPLIT = "byte_stream_split"
#: only in a split stream: numbers of columns from 0, ascending, with commas between them
METADATA_SPLIT_TEXTS = "menura.split_texts"

#: largest wire payload of one batch before compression, in bytes; a receiver refuses more
MAX_BATCH_BYTES = 256 << 20
#: largest sum of a CutEnd's events as encoded messages, and of one event's statement in UTF-8; a sender ends the cut
#: and shortens statements before, a receiver refuses more
MAX_EVENTS_BYTES = 8 << 20
MAX_STATEMENT_BYTES = 64 << 10
#: the server's own limit of columns in a table
MAX_TABLE_COLUMNS = 4096


#: what `landed_column` gives in place of a first sign
_ESCAPED = ("%5F", "%25")


class ChangeType(IntEnum):
    """What a row is; the names are those of Delta's change feed."""

    insert = 0
    update_preimage = 1
    update_postimage = 2
    delete = 3
    snapshot = 4


def landed_column(name: str) -> str:
    """What a table's column is called on the wire and in landing: its name, but for what could be a column of ours.

    >>> landed_column("price"), landed_column("_gsn"), landed_column("%5Fgsn")
    ('price', '%5Fgsn', '%255Fgsn')
    """
    return f"%{ord(name[0]):02X}{name[1:]}" if is_reserved(name) or name.startswith("%") else name


def source_column(landed: str) -> str:
    """The name that `landed_column` was given.

    >>> source_column("price"), source_column("%5Fgsn"), source_column("%255Fgsn")
    ('price', '_gsn', '%5Fgsn')
    """
    return chr(int(landed[1:3], 16)) + landed[3:] if landed[:3] in _ESCAPED else landed


def is_reserved(column: str) -> bool:
    """Whether the name is one of ours.

    >>> is_reserved("_GSN"), is_reserved("_Menura_row"), is_reserved("gsn")
    (True, True, False)
    """
    name = column.lower()
    return name in RESERVED_NAMES or name.startswith(RESERVED_PREFIX)
