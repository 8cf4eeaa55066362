"""The continuity ledger of a table."""

from controlplane_api.api.views.base import View


class LedgerEntryView(View):
    """What became of a table's continuity. Positions are in the server's own words."""

    #: of the table's, from 1
    number: int
    at_us: int
    #: a name of `states.LedgerKind`
    kind: str
    #: number of the event among the source's row changes; 0: no event told it
    gsn: int
    #: of a GAP: up to where the table was read
    from_position: str
    #: where the table was then
    to_position: str
    #: of DUMP_STARTED and DUMPED
    dump: str
    #: the reason; of a COMMAND what was ordered
    detail: str
    #: who has ordered it; empty: it follows the log
    actor: str
    #: SHA-256 over the entry and the hash of the one before it
    hash: str


class Ledger(View):
    #: the newest first
    entries: list[LedgerEntryView]
    #: for the next page; null on the last
    next_cursor: str | None = None


class LedgerChecked(View):
    #: that are as they were written
    entries: int
    #: the hash of the last of them
    head: str
    #: number of the first entry that is missing or not as it was written; null: all are there
    broken_at: int | None
    #: number of the entry whose hash is the `head` of the request; null: of none
    has_head_at: int | None


class LedgerShown(View):
    """As `menura ledger --json` has it."""

    entries: list[LedgerEntryView]
    checked: LedgerChecked
