"""Whether landing, lake and checkpoint belong together: before anything is read of one or written to another.

Numbers of entries and cuts begin at 1 in each landing, and a lake leaves out what it has by these numbers alone. So
with another landing, or a checkpoint of another lake, rows would be left out and nothing would say so.

Comes in: landing.json, the offset in the checkpoint, `_menura/landing`. Goes out: the landing's identity, durable
in `_menura/landing` before the first row; or the reason to refuse. A lake and a checkpoint of an earlier version have
none, and take the one that they meet first.
"""

from menura.landing import IDENTITY_PATH

from spark_sink.errors import LakeLost, OtherLanding
from spark_sink.ingest.checkpoint import Checkpoint
from spark_sink.lake.delta_table import open_table
from spark_sink.lake.records import Records
from spark_sink.landed.landing_log import LandingLog, log_entry_missing


def check_identity(log: LandingLog, records: Records, checkpoint: Checkpoint) -> str:
    """The identity of the landing, lake and checkpoint; '' where the landing has none.

    Raises `OtherLanding`, `LakeLost`, `LogEntryMissing`.
    """
    found, held = log.identity(), records.landing()
    entry, counted_in = checkpoint.read()
    for what, belongs_to in ((f"the lake {records.lake}", held), (f"the checkpoint {checkpoint.url}", counted_in)):
        if belongs_to and belongs_to != found:
            raise _other(log, what, belongs_to, found)
    if entry and not held and open_table(records.cuts_folder) is None:
        raise LakeLost(
            f"opening the lake {records.lake}",
            f"it holds nothing, and the checkpoint {checkpoint.url} says that entries up to {entry} are in it",
            data="Nothing was read or written",
            remedy="Restore the lake, or start with another --checkpoint: then the lake is written anew, as far back as"
            " the landing reaches",
        )
    if entry and (missing := log.missing(entry + 1)) and not log.has(entry + 1):
        raise log_entry_missing(entry + 1, missing, is_removed=entry + 1 < log.horizon().first_entry)
    if found and not held and (first := records.belongs_to(found)) != found:
        raise _other(log, f"the lake {records.lake}", first, found)
    return found


def _other(log: LandingLog, what: str, belongs_to: str, found: str) -> OtherLanding:
    return OtherLanding(
        f"opening the landing {log.url}",
        (f"it is landing {found}" if found else f"it does not say which landing it is ({IDENTITY_PATH} is missing)")
        + f", and {what} belongs to landing {belongs_to}",
        data="Nothing was read or written",
        remedy="Point --landing to the landing of this lake, or restore it; another landing needs a --lake and a"
        " --checkpoint of its own",
    )
