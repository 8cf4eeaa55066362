"""One Parquet file of landing while it is being written: row groups in, a closed file out.

Calls block and raise OSError or ArrowException where the storage refuses. Durable is nothing of it before
`Store.make_durable`.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

import pyarrow as pa
import pyarrow.parquet as pq
from menura.change_batch import ABSENT, UNREPRESENTABLE
from menura.stores.store import Output, Store

#: what gathers in memory of one table before it is written, since small row groups read slowly
ROW_GROUP_BYTES = 4 << 20

NO_METADATA: Mapping[str, str] = MappingProxyType({})
_OF_ANY_LENGTH = frozenset({pa.string().id, pa.binary().id})


class ParquetFile:
    def __init__(
        self,
        storage: Store,
        path: str,
        schema: pa.Schema,
        *,
        few_values: Sequence[str] = (),
        growing: Sequence[str] = (),
    ) -> None:
        """`few_values` names the columns that are worth a dictionary, `growing` integers that are worth differences."""
        self.path = path
        self.rows = 0
        #: of the rows, as they were given
        self.plain_bytes = 0
        self._storage = storage
        self._output: Output = storage.create(path)
        try:
            self._writer = pq.ParquetWriter(
                self._output,
                schema,
                compression="zstd",
                compression_level=1,
                # Measured: dictionaries for all columns cost 2.5 times the CPU of the ones with few values.
                use_dictionary=list(few_values),
                # Measured: 7 % less CPU to write a file of sixteen columns, and to read it; 5 % less of it.
                column_encoding=dict.fromkeys(growing, "DELTA_BINARY_PACKED"),
                # Of text and bytes the writer keeps the least and the greatest value several times, up to the file's
                # end: 400 MiB of a row of 63. Readers ask for numbers, and whether a column of ours has values.
                write_statistics=[field.name for field in schema if _has_statistics(field)],
                write_page_checksum=True,
            )
        except (OSError, pa.ArrowException):
            storage.discard(path, self._output)
            raise

    @property
    def written_bytes(self) -> int:
        """Without what closing adds."""
        return self._output.tell()

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        """One row group."""
        rows = pa.Table.from_batches(batches)
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self.rows += rows.num_rows
        self.plain_bytes += rows.nbytes

    def close(self, metadata: Mapping[str, str] = NO_METADATA) -> int:
        """Returns the file's size in bytes; `metadata` is the file's own."""
        self._writer.add_key_value_metadata(dict(metadata))
        self._writer.close()
        size_bytes = self._output.tell()
        self._output.close()
        return size_bytes

    def discard(self) -> None:
        """Delete it, open as it is."""
        with suppress(OSError, pa.ArrowException):  # the disk that refused the rows refuses the footer too
            self._writer.close()
        self._storage.discard(self.path, self._output)


def _has_statistics(field: pa.Field) -> bool:
    if field.name in (UNREPRESENTABLE, ABSENT):
        return True
    return field.type.id not in _OF_ANY_LENGTH and not pa.types.is_dictionary(field.type)
