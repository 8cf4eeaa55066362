"""What sinks report of their lakes, as rows; what is asked of stopped tables; lakes that are no more.

Comes in: `menura.lake_report.LakeReport`s, checked, within a transaction. Goes out: rows of `lake`, `lake_source`,
`lake_stop`, `lake_policy`, `lake_joined_view` and `verdict`, and the reply.
One transaction holds a whole report, so a kill leaves it applied or not; the sink learns which by the next reply.
Tenants, sources and tables stand there by name, whether this database knows them or not: a report makes none of them.
A report of another process of the sink, of another database, or one that is late does not apply, and the sink tells
everything anew.

The number of lakes and of a lake's stopped tables is limited: what comes from a sink is bounded like what comes from
an agent.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from menura.lake_report import MAX_ROWS, LakeReply, LakeReport, LakeTable
from menura.lake_report import LakeStop as ReportedStop
from menura.naming import TableName
from sqlalchemy import Connection, and_, case, delete, func, insert, select, update

from controlplane_api import comparisons, continuity_ledger, joined_views, repair_proofs, rereads, verdicts
from controlplane_api.documents import insert_into
from controlplane_api.errors import LakeUnknown, RequestInvalid
from controlplane_api.lookups import among
from controlplane_api.models import AnyRow, Lake, LakeJoinedView, LakePolicy, LakeSource, LakeStop

MAX_LAKES = 100
#: of one lake; ten times what a large source has
MAX_STOPS = 100_000
#: of one lake, with something to tell of their policies for schema changes
MAX_POLICIES = 100_000

_NAME = (LakeStop.tenant, LakeStop.source, LakeStop.database, LakeStop.name)
_WITH_POLICY = (LakePolicy.tenant, LakePolicy.source, LakePolicy.database, LakePolicy.name)
_SAID = ("entry", "cut", "code", "message", "terminal", "at_us", "last_commit_timestamp_us", "reread", "gsn")


def take_report(connection: Connection, report: LakeReport, at_us: int) -> LakeReply:
    """Apply a report. Raises `RequestInvalid` where there are too many lakes or stopped tables."""
    lake = connection.execute(select(Lake).where(Lake.name == report.lake).with_for_update()).first()
    if not _applies(lake, report):
        return LakeReply(resend=True)
    lake_id = lake.id if lake is not None else _create(connection, report.lake, report.url, report.landing)
    new = _new_stops(connection, lake_id, [stop for stop in report.stopped if stop.reread])
    # Before any row of its tables is written, and in one order: commands, cuts and other reports hold a source first.
    rereads.lock_sources(connection, [*new, *(verdict.of for verdict in report.verdicts)])
    if report.base == 0:
        connection.execute(update(LakeStop).where(LakeStop.lake_id == lake_id).values(stale=True))
        # A lake that is not as far as it was is another one under the same name.
        connection.execute(delete(LakeSource).where(LakeSource.lake_id == lake_id, LakeSource.entry > report.entry))
    _store_sources(connection, lake_id, report)
    _store_stops(connection, lake_id, report)
    _store_policies(connection, lake_id, report)
    _store_views(connection, lake_id, report)
    found = verdicts.store(connection, lake_id, report.verdicts, at_us)
    continuity_ledger.record_verdicts(connection, report.lake, found, at_us)
    rereads.order_due(connection, comparisons.compared_of(connection, [verdict.of for verdict in found]), at_us)
    repair_proofs.follow_told(connection, lake_id, found, at_us)
    if new:
        rereads.order_due(connection, rereads.note_stops_of_lake(connection, lake_id, new), at_us)
    if not report.more:
        connection.execute(delete(LakeStop).where(LakeStop.lake_id == lake_id, LakeStop.stale.is_(True)))
    connection.execute(
        update(Lake)
        .where(Lake.id == lake_id)
        .values(
            url=report.url, landing=report.landing, run=report.run, number=report.number, entry=report.entry,
            durable_entry=report.durable_entry,
            complete=not report.more or (lake is not None and lake.complete),
            waiting_since_us=report.waiting_since_us, received_at_us=at_us,
            problem=None if report.problem is None else asdict(report.problem),
        )
    )  # fmt: skip
    digest = joined_views.digest_of_desired(connection)
    return LakeReply(resend=False, retry=_asked(connection, lake_id), views=digest)


def expect_lake(connection: Connection, name: str, url: str, landing: str) -> None:
    """A sink for this lake was started: until it reports, nothing is known of the lake."""
    found = connection.execute(select(Lake.id).where(Lake.name == name)).scalar()
    if found is None:
        _create(connection, name, url, landing)


def forget_lake(connection: Connection, name: str) -> None:
    """Raises `LakeUnknown`. A sink that still runs brings it back with its next report."""
    found = connection.execute(select(Lake.id).where(Lake.name == name)).scalar()
    if found is None:
        raise LakeUnknown(
            "forgetting a lake",
            "no sink has reported a lake of this name",
            data="Nothing was changed.",
            remedy="See those that there are: menura lakes.",
        )
    verdicts.forget_lake(connection, found)
    for model in (LakeJoinedView, LakePolicy, LakeStop, LakeSource):
        connection.execute(delete(model).where(model.lake_id == found))
    connection.execute(delete(Lake).where(Lake.id == found))


def ask_retry(connection: Connection, tables: Iterable[LakeTable]) -> None:
    """Let the sinks that have stopped these tables try them again: their next reply says so."""
    names = [(each.tenant, each.source, each.database, each.table) for each in tables]
    connection.execute(update(LakeStop).where(among(_NAME, names)).values(retry=True))


def stopped_tables(connection: Connection, tenant: str, source: str) -> set[TableName]:
    """Tables of a source that any sink has stopped."""
    rows = connection.execute(
        select(LakeStop.database, LakeStop.name).where(LakeStop.tenant == tenant, LakeStop.source == source)
    )
    return {(row.database, row.name) for row in rows}


def _applies(lake: AnyRow | None, report: LakeReport) -> bool:
    if lake is not None and lake.run == report.run and report.number <= lake.number:
        return False  # late, or a second time
    return report.base == 0 or (lake is not None and (lake.run, lake.number) == (report.run, report.base))


def _create(connection: Connection, name: str, url: str, landing: str) -> int:
    if connection.execute(select(func.count()).select_from(Lake)).scalar_one() >= MAX_LAKES:
        raise RequestInvalid(
            "taking a lake's report",
            f"there are {MAX_LAKES} lakes already",
            data="The report was not stored.",
            remedy="Forget those that are no more: menura lakes --forget NAME.",
        )
    return connection.execute(insert(Lake).values(name=name, url=url, landing=landing).returning(Lake.id)).scalar_one()


def _store_sources(connection: Connection, lake_id: int, report: LakeReport) -> None:
    rows = [{"lake_id": lake_id, **asdict(source)} for source in report.sources]
    if rows:
        statement = insert_into(connection, LakeSource)
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=[LakeSource.lake_id, LakeSource.tenant, LakeSource.source],
                set_={
                    name: statement.excluded[name]
                    for name in ("entry", "cut", "committed_at_us", "last_commit_timestamp_us")
                },
            ),
            rows,
        )


def _new_stops(connection: Connection, lake_id: int, stops: Sequence[ReportedStop]) -> list[LakeTable]:
    """Tables of those that were not known."""
    if not stops:
        return []
    names = [(stop.tenant, stop.source, stop.database, stop.table) for stop in stops]
    rows = connection.execute(select(*_NAME, LakeStop.at_us).where(LakeStop.lake_id == lake_id, among(_NAME, names)))
    known = {LakeTable(*name): at_us for *name, at_us in rows}
    return [stop.of for stop in stops if known.get(stop.of) != stop.at_us]


def _store_stops(connection: Connection, lake_id: int, report: LakeReport) -> None:
    resumed = [(each.tenant, each.source, each.database, each.table) for each in report.resumed]
    if resumed:
        connection.execute(delete(LakeStop).where(LakeStop.lake_id == lake_id, among(_NAME, resumed)))
    if not report.stopped:
        return
    kept = {"lake_id": lake_id, "retry": False, "asked": False, "stale": False}
    rows = [
        {**kept, "name": stop.table, **{name: getattr(stop, name) for name in ("tenant", "source", "database", *_SAID)}}
        for stop in report.stopped
    ]
    statement = insert_into(connection, LakeStop)
    is_same = LakeStop.at_us == statement.excluded["at_us"]
    of_stop = {
        "retry": case((is_same, LakeStop.retry), else_=False),  # another stop is the answer to what was asked
        "asked": case((is_same, LakeStop.asked), else_=False),
        "gsn": case((and_(is_same, LakeStop.gsn > 0), LakeStop.gsn), else_=statement.excluded["gsn"]),
    }
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[LakeStop.lake_id, *_NAME],
            set_={**{name: statement.excluded[name] for name in (*_SAID, "stale")}, **of_stop},
        ),
        rows,
    )
    stops = select(func.count()).where(LakeStop.lake_id == lake_id)
    if connection.execute(stops).scalar_one() > MAX_STOPS:
        raise RequestInvalid(
            "taking a lake's report",
            f"the lake would have more than {MAX_STOPS} stopped tables",
            data="The report was not stored.",
            remedy="See the sink's log for why it stops them.",
        )


def _store_policies(connection: Connection, lake_id: int, report: LakeReport) -> None:
    of_lake = LakePolicy.lake_id == lake_id
    if report.base == 0:  # all are told anew
        connection.execute(delete(LakePolicy).where(of_lake))
    if not report.policies:
        return
    names = [(each.tenant, each.source, each.database, each.table) for each in report.policies]
    connection.execute(delete(LakePolicy).where(of_lake, among(_WITH_POLICY, names)))
    rows = [
        {"lake_id": lake_id, "name": each.table}
        | {name: getattr(each, name) for name in ("tenant", "source", "database", "said")}
        for each in {each.of: each for each in report.policies}.values()
        if each.said
    ]
    if rows:
        connection.execute(insert(LakePolicy), rows)
    if connection.execute(select(func.count()).where(of_lake)).scalar_one() > MAX_POLICIES:
        raise RequestInvalid(
            "taking a lake's report",
            f"the lake would have more than {MAX_POLICIES} tables with policies for schema changes",
            data="The report was not stored.",
            remedy="Use the same version on both sides: a sink tells no more.",
        )


def _store_views(connection: Connection, lake_id: int, report: LakeReport) -> None:
    if report.views is None and report.base != 0:
        return
    connection.execute(delete(LakeJoinedView).where(LakeJoinedView.lake_id == lake_id))
    said = ("tenant", "name", "digest", "state", "code", "message", "rows", "changes", "applied_at_us")
    rows = [
        {"lake_id": lake_id, "lake_version": view.version, "cuts": [asdict(cut) for cut in view.cuts]}
        | {name: getattr(view, name) for name in said}
        for view in {(view.tenant, view.name): view for view in report.views or ()}.values()
    ]
    if rows:
        connection.execute(insert(LakeJoinedView), rows)


def _asked(connection: Connection, lake_id: int) -> tuple[LakeTable, ...]:
    rows: Sequence[AnyRow] = connection.execute(
        select(*_NAME).where(LakeStop.lake_id == lake_id, LakeStop.retry.is_(True)).order_by(*_NAME).limit(MAX_ROWS)
    ).all()
    return tuple(LakeTable(*row) for row in rows)
