"""What a sink is told: where its landing, lake and checkpoint are, and how it works."""

from dataclasses import dataclass, field, replace

from spark_sink.ingest.batch_share import BatchShare
from spark_sink.ingest.cut_log_source import Limits
from spark_sink.ingest.table_task import TaskSize
from spark_sink.lake.changelog_retention import KEEP_ALL, KeepRules
from spark_sink.lake.folder_rules import DEFAULT_FOLDERS, FolderRules
from spark_sink.lake.retention import KEEP_HOURS
from spark_sink.lake.schema_policy import EVOLVE_ALL, SchemaRules
from spark_sink.lake.table_options import PLAIN_TABLES, OptionRules
from spark_sink.lake.tail import AT_ONCE, Waiting


@dataclass(frozen=True, slots=True)
class SinkSettings:
    landing: str
    lake: str
    checkpoint: str
    trigger_seconds: float = 1.0
    available_now: bool = False
    limits: Limits = field(default_factory=Limits)
    size: TaskSize = field(default_factory=TaskSize)
    #: how much of one table the others wait for
    share: BatchShare = field(default_factory=BatchShare)
    #: how long old versions of the lake's tables stay readable
    keep_hours: int = KEEP_HOURS
    #: how long changes of a large table may wait to be merged
    waiting: Waiting = field(default_factory=Waiting)
    #: a current state of more bytes, or of many rows, is merged beside batches; None: none is
    detached_bytes: int | None = None
    #: how much of their changelogs is kept
    keep_changelogs: KeepRules = KEEP_ALL
    #: what becomes of changes of their definitions
    schema_changes: SchemaRules = EVOLVE_ALL
    #: what their current states have beyond their sources' rows
    table_options: OptionRules = PLAIN_TABLES
    #: where in the lake new tables stand
    table_folders: FolderRules = DEFAULT_FOLDERS
    #: file with the definitions of views; '': there are none
    views: str = ""
    #: folder on each machine where views' rows may be looked up; '': their tables are scanned
    view_stores: str = ""

    @property
    def table_waiting(self) -> Waiting:
        """How long changes of tables wait. Who lets the sink run to an end reads the lake afterwards."""
        return AT_ONCE if self.available_now else replace(self.waiting, detached_bytes=self.detached_bytes)
