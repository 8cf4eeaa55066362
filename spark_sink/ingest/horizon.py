"""Where a sink without a checkpoint begins when the log's first entries are removed.

Comes in: the landing's newest horizon, the lake's records. Goes out: the entry behind which the query begins. A lake
that holds nothing begins behind the horizon's entry. Each table that the horizon has stops at once with ENTRIES_GONE:
its rows of before are in no entry, so it waits for a dump, also one whose last word was a TRUNCATE. A table with
foreign keys stops with PARENT_BEGUN_ANEW and waits for a dump behind the last event that told them: which keys held
before it is not known, since each new stream of an agent tells them anew. A lake that holds
something has lost its checkpoint: it is given all entries that are left, and skips what it has, if those were among
the last that it had; else it refuses.

Durable, before the first batch: events that say how tables follow each other, then the stops, both in `_menura`. A kill
between leaves a lake that still holds no cut, and the next start does the same with the horizon of then.
"""

import logging
from collections.abc import Iterator

from menura.horizon import Horizon, HorizonSource, HorizonTable
from menura.instants import now_us

from spark_sink.errors import EntriesGone, ParentBegunAnew
from spark_sink.ingest.families import FOREIGN_KEYS
from spark_sink.lake.records import Records, StoppedTable
from spark_sink.landed.landing_log import LandingLog, log_entry_missing
from spark_sink.work import CutEvent, EventSeen, TableId

logger = logging.getLogger("menura.sink")


def begin_at_horizon(log: LandingLog, records: Records) -> int:
    """The entry behind which a query without a checkpoint begins; 0: it has all from the first one on.

    Raises `LogEntryMissing`, `LogEntryUnreadable`, `LakeRecordsUnwritable`, OSError.
    """
    name = log.horizon()
    if not name.entry:
        return 0
    applied = records.last_entry()
    if applied:
        if applied + 1 < name.first_entry:
            found = f"it is removed, as are all before entry {name.first_entry}; the lake has entry {applied}"
            raise log_entry_missing(applied + 1, found, is_removed=True)
        return name.first_entry - 1
    horizon = log.read_horizon(name)
    records.record_events(_key_events(horizon))
    known = records.stopped_tables()
    stops = [stop for stop in _stops(horizon) if stop.table not in known]
    records.record_stops(stops)
    logger.warning(
        "the lake begins behind a horizon of the cut log: its tables wait for dumps entry=%d tables=%d",
        horizon.entry,
        len(stops),
    )
    return horizon.entry


def _id(source: HorizonSource, table: HorizonTable) -> TableId:
    return TableId(source.tenant, source.source, table.database, table.table)


def _key_events(horizon: Horizon) -> Iterator[EventSeen]:
    for source in horizon.sources:
        for table in source.tables:
            for event in table.key_events:
                yield EventSeen(_id(source, table), CutEvent(horizon.entry, source.cut, event))


def _stops(horizon: Horizon) -> Iterator[StoppedTable]:
    at_us = now_us()
    for source in horizon.sources:
        for each in source.tables:
            if each.is_dropped:
                continue
            table, cut = _id(source, each), source.cut + 1
            gone: EntriesGone | ParentBegunAnew = EntriesGone(
                "beginning the table in a new lake",
                f"the landing has removed all before entry {horizon.first_entry} of the cut log, with the table's rows",
                data="The lake has no row of it; other tables go on",
                remedy=f"Begin the table anew: {table.resync}",
                **table.where(cut),
            )
            entry = horizon.first_entry - 1
            told = max((event.gsn for event in each.key_events if event.kind == FOREIGN_KEYS), default=0)
            if told:
                gone = ParentBegunAnew(
                    "beginning the table in a new lake",
                    f"the landing has removed all before entry {horizon.first_entry} of the cut log, and which foreign"
                    f" keys the table had before row number {told} is not known",
                    data="The lake has no row of it; other tables go on",
                    remedy=f"Begin the table anew: {table.resync}",
                    **table.where(cut),
                )
            yield StoppedTable(table, entry, cut, gone.code, str(gone), gone.terminal, at_us, begins_at_gsn=told)
