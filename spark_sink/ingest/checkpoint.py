"""How far the sink has come in the log, durably, so that a start need not read it from its first entry.

A folder of this machine is Spark's own checkpoint: commits/N for each finished batch, and offsets/N. Spark writes it by
renames, which object stores do not have. There the sink keeps one document, `offset.json`, {"format": 1, "entry": 7,
"landing": "5b0c..."}: all entries up to this one are in the lake. It is put after the batch's tables and records. Spark
then works in a scratch folder that is new with each start, and begins where the document says.

A kill before the put leaves an older document: what follows it is read again, and tables skip what they have. A kill
leaves the scratch folder among the machine's temporary files.
"""

import json
import shutil
import tempfile
from dataclasses import dataclass, field

from menura.stores.address import is_local
from menura.stores.store import Store

from spark_sink.errors import OtherLanding
from spark_sink.landed.storage import open_storage

OFFSET = "offset.json"
FORMAT = 1
MOST_OFFSET_BYTES = 1 << 16


@dataclass(slots=True)
class Checkpoint:
    url: str
    _scratch: str = field(default="", init=False)

    @property
    def is_spark_s(self) -> bool:
        return is_local(self.url)

    def location(self) -> str:
        """Where Spark keeps what it keeps, for a query that starts now."""
        if self.is_spark_s:
            return self.url
        self.close()
        self._scratch = tempfile.mkdtemp(prefix="menura-checkpoint-")
        return self._scratch

    def close(self) -> None:
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = ""

    def read(self) -> tuple[int, str]:
        """The last entry that is done, and of which landing; 0 for none, '' for not known. Raises OSError."""
        store = open_storage(self.url)
        document = _last_offset(store, self.url) if self.is_spark_s else store.read(OFFSET, MOST_OFFSET_BYTES)
        if document is None:
            return 0, ""
        try:
            offset = json.loads(document.decode().splitlines()[-1])
            return int(offset["entry"]), str(offset.get("landing", ""))
        except (ValueError, IndexError, KeyError, TypeError, AttributeError) as broken:
            raise OtherLanding(
                f"reading the checkpoint {self.url}",
                "it does not say up to which entry the lake has all",
                data="Nothing was read or written",
                remedy="Restore it, or start with another --checkpoint: entries that the lake has are left as they are",
            ) from broken

    def done(self, entry: int, landing: str) -> None:
        """All entries up to this one are in the lake. Raises OSError."""
        if not self.is_spark_s:
            offset = {"format": FORMAT, "entry": entry, "landing": landing}
            open_storage(self.url).put(OFFSET, json.dumps(offset).encode())


def _last_offset(store: Store, url: str) -> bytes | None:
    """Of Spark's last batch: a version, its own facts, then a line for each source, as `cut_log_source` has it.

    https://spark.apache.org/docs/latest/structured-streaming-programming-guide.html
    """
    names = [found.path.rpartition("/")[2] for found in store.list("commits")]
    batches = [int(name) for name in names if name.isdecimal()]
    if not batches:
        return None
    document = store.read(f"offsets/{max(batches)}")
    if document is None:
        raise FileNotFoundError(2, f"{url}/offsets/{max(batches)} is not there")
    return document
