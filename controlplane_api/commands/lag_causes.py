"""Where a table's lag comes from, by stage, in plain sentences. Pure.

Comes in: what the API says of a source and of one of its tables. Goes out: causes, of which the first one counts most:
what stands still, then what is behind, the largest first, then what is not known, then what is not behind. What is not
known is said to be unknown, never 0.
"""

from collections.abc import Iterator

from menura.lake_report import TABLE_BEHIND
from menura.naming import command_table, sync_anew

from controlplane_api.api.table_reasons import TableReason
from controlplane_api.api.views import DumpView, LakeView, SourceView, TableView, View
from controlplane_api.commands.options import count, duration, moment, plain, size
from controlplane_api.states import Desired, DumpState, LakeState, Stage, State

#: of the time that was looked at: a stream that waits more for the gateway is slowed down by it
MUCH_WAITING = 0.1
_POSITION_CHARS = 60


class Cause(View):
    stage: Stage
    #: nothing goes on there until somebody or something else does what `why` says
    stands_still: bool
    #: null while unknown
    behind_us: int | None
    why: str


class Why(View):
    source: str
    database: str
    table: str
    state: State
    #: why it is in its state, what that means and what to do, as the API says it
    reason: TableReason
    meaning: str
    remedy: str
    #: of the stages of which it is known, to the lake that is the furthest behind; null while none of these is behind
    #: and another one is not known, or stands still
    behind_us: int | None
    #: false: a stage is not known, or stands still; the lag is at least `behind_us`
    complete: bool
    #: now minus the commit time of the newest change in the lake; null while unknown
    freshness_us: int | None
    causes: list[Cause]


def why(source: SourceView, table: TableView, waiting: float | None, now: int) -> Why:
    """`waiting`: which part of the last seconds the stream has waited for the gateway; None: not known."""
    causes = _causes(source, table, waiting, now)
    worst = {stage: [cause for cause in causes if cause.stage is stage] for stage in Stage}
    known = sum(max((cause.behind_us or 0 for cause in found), default=0) for found in worst.values())
    complete = all(found and not any(map(_is_open, found)) for found in worst.values())
    return Why(
        source=source.source,
        database=table.database,
        table=table.table,
        state=table.state,
        reason=table.reason,
        meaning=table.meaning,
        remedy=table.remedy,
        behind_us=known if known or complete else None,
        complete=complete,
        freshness_us=None if table.lake is None else table.lake.freshness_us,
        causes=sorted(causes, key=_weight),
    )


def waiting_part(before: SourceView, after: SourceView) -> float | None:
    """Which part of the time between two heartbeats of one process the stream has waited for the gateway.

    None: there was no second one, or the process is another.
    """
    times = (before.told_at_us, after.told_at_us, before.credit_wait_us, after.credit_wait_us)
    if None in times or before.told_at_us == after.told_at_us:
        return None
    passed = (after.told_at_us or 0) - (before.told_at_us or 0)
    waited = (after.credit_wait_us or 0) - (before.credit_wait_us or 0)
    return min(1.0, waited / passed) if passed > 0 and waited >= 0 else None


def _is_open(cause: Cause) -> bool:
    return cause.stands_still or cause.behind_us is None


def _weight(cause: Cause) -> tuple[bool, bool, int]:
    known = cause.behind_us or 0
    return not cause.stands_still, not known and cause.behind_us is not None, -known


def _causes(source: SourceView, table: TableView, waiting: float | None, now: int) -> list[Cause]:
    if table.desired is not Desired.SYNCING or not table.runs:
        return [_not_run(source, table)]
    causes = [*_standing_still(source, table), *_dump(table)]
    return [*causes, _read(source, waiting, now), _landed(source, now), *_in_lakes(source, table)]


def _not_run(source: SourceView, table: TableView) -> Cause:
    """Of a table that is not read."""
    start = f"menura sync start {source.source} {command_table(table.database, table.table)}"
    if table.denied:
        why = "The policy of the database's host does not let the table leave. Its owner may change the policy."
    elif table.problem is not None:
        why = table.problem.message
    elif table.desired is None:
        why = f"No sync of the table was asked for. Run: {sync_anew(source.source, table.database, table.table)}"
    else:
        why = f"Its sync was stopped at {_short(table.position)}. Run: {start}"
    return Cause(stage=table.stage or Stage.SOURCE, stands_still=True, behind_us=None, why=why)


def _standing_still(source: SourceView, table: TableView) -> Iterator[Cause]:
    """What holds the table up, and what holds its source up, each once."""
    told = []
    for stage, problem in ((table.stage, table.problem), (source.stage, source.stage_problem)):
        if problem is not None and problem.code != TABLE_BEHIND and problem.message not in told:
            told.append(problem.message)
            yield Cause(stage=stage or Stage.SOURCE, stands_still=True, behind_us=None, why=problem.message)
    if not told and table.state is State.PENDING:
        why = f"{table.meaning} {table.remedy}"
        yield Cause(stage=Stage.SOURCE, stands_still=True, behind_us=None, why=why)


def _dump(table: TableView) -> Iterator[Cause]:
    dump = table.dump
    if dump is None:
        return
    done = "how far is not known" if dump.percent is None else f"{dump.percent:.1f} % of its rows are in the landing"
    words = [f"A dump of the table's earlier rows is {dump.state}: {done}, {count(dump.rows)} rows."]
    words += [f"It reads {count(dump.rows_per_second)} rows/s."] if dump.rows_per_second is not None else []
    words += [f"It waits or is slowed down: {dump.reason}."] if dump.reason else []
    words += [dump.problem.message] if dump.problem is not None else []
    words += [f"Run: menura dump resume {dump.dump}"] if dump.state is DumpState.PAUSED else []
    words += [f"It may end at {moment(dump.estimated_end_us)}."] if dump.estimated_end_us is not None else []
    yield Cause(stage=Stage.SOURCE, stands_still=_waits(dump), behind_us=None, why=" ".join(words))


def _waits(dump: DumpView) -> bool:
    return dump.state in (DumpState.PAUSED, DumpState.WAITING, DumpState.PENDING)


def _read(source: SourceView, waiting: float | None, now: int) -> Cause:
    """Between the end of the server's log and what the agent has read."""
    agent = f"Agent {source.agent}" if source.agent else "The agent"
    slowed = waiting is not None and waiting >= MUCH_WAITING
    if source.lag_us == 0:
        why = f"{agent} has read the server's log to its end."
    elif source.lag_us is not None:
        speed = f"{count(source.rows_per_second)} rows/s, {size(source.read_bytes_per_second)}/s"
        why = f"{agent} has read to {_short(source.read_position)} of {_short(source.source_position)}; {speed}."
    elif not source.connected:
        why = f"{agent} is not connected, so how far it has read is not known."
    else:
        why = f"{agent} is connected, and has said nothing of its place in the log of late, or can't tell it."
    if slowed:
        why += (
            f" It has waited {waiting:.0%} of the last seconds for the gateway, which lands more slowly than it reads."
        )
    return Cause(stage=Stage.SOURCE, stands_still=False, behind_us=source.lag_us, why=why)


def _landed(source: SourceView, now: int) -> Cause:
    """Between what the agent has read and what the gateway has committed."""
    behind_us = None
    if source.lag_us is None:
        why = "How much was read and has not landed is not known."
    elif source.read_position and source.read_position == source.committed_position:
        behind_us, why = 0, "All that was read has landed."
    elif source.last_commit_timestamp_us is None:
        why = "Nothing of the source has landed yet."
    else:
        most = duration(max(0, now - source.last_commit_timestamp_us))
        why = (
            f"Read and not landed: what is after {_short(source.committed_position)}. For how long is not known, and"
            f" for no longer than {most}: then the last change was committed that has landed."
        )
    if source.gateway is None:
        why += " No gateway has the source now."
    return Cause(stage=Stage.GATEWAY, stands_still=False, behind_us=behind_us, why=why)


def _in_lakes(source: SourceView, table: TableView) -> Iterator[Cause]:
    if not source.lakes:
        why = "No sink reports a lake that has the source, so how far the table is in one is not known."
        yield Cause(stage=Stage.LAKE, stands_still=False, behind_us=None, why=why)
    for lake in source.lakes:
        state = table.lake.state if table.lake is not None and table.lake.lake == lake.lake else lake.state
        why = _in_lake(lake)
        if lake.state is LakeState.FOLLOWING and state in _LEFT_OUT:
            why = _LEFT_OUT[state].format(lake=lake.lake)
        behind_us = None if state in _LEFT_OUT else lake.landing_lag_us
        yield Cause(stage=Stage.LAKE, stands_still=False, behind_us=behind_us, why=why)


#: of a table whose lake goes on without it
_LEFT_OUT = {
    LakeState.FAILED: "The table has stopped in lake {lake}, which goes on with others.",
    LakeState.BEHIND: "More of the table landed at once than others wait for: lake {lake} takes it in parts between"
    " batches of the others.",
}


def _in_lake(lake: LakeView) -> str:
    if lake.state is not LakeState.FOLLOWING:
        return f"How far the source is in lake {lake.lake} is not known: its state is {lake.state}."
    if lake.landing_lag_us == 0:
        return f"Lake {lake.lake} has all that has landed."
    if lake.landing_lag_us is None:
        return f"Lake {lake.lake} has more than the database knows of, so how far it is behind is not known."
    lacks = "cuts that have landed" if lake.cuts_behind is None else f"{count(lake.cuts_behind)} cuts that have landed"
    return f"Lake {lake.lake} does not have {lacks}: its sink has not merged them yet."


def _short(position: str) -> str:
    clean = plain(position)
    if not clean:
        return "a place that is not known"
    return clean if len(clean) <= _POSITION_CHARS else f"…{clean[1 - _POSITION_CHARS :]}"
