"""Counters of one gateway process, read by whoever exposes them."""

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class GatewayMetrics:
    """Only ever grow; changed on the event loop alone."""

    menura_session_streams_total: int = 0
    menura_session_errors_total: int = 0
    menura_landing_batches_total: int = 0
    menura_landing_received_bytes_total: int = 0
    menura_landing_rows_total: int = 0
    menura_landing_resent_rows_total: int = 0
    menura_landing_fenced_batches_total: int = 0
    menura_landing_cuts_total: int = 0
    menura_landing_files_total: int = 0
    menura_landing_file_bytes_total: int = 0
    menura_landing_failures_total: int = 0
    menura_dump_batches_total: int = 0
    menura_dump_received_bytes_total: int = 0
    #: of chunks that cuts have committed
    menura_dump_rows_total: int = 0
    menura_dump_chunks_total: int = 0
    #: landed and deleted again: read anew, given up, or of a dump that is over
    menura_dump_discarded_chunks_total: int = 0
    #: named by a cut and not there
    menura_dump_unknown_chunks_total: int = 0
    menura_log_entries_total: int = 0
    menura_log_commit_us_total: int = 0
    menura_registry_failures_total: int = 0

    def values(self) -> dict[str, int]:
        return asdict(self)
