"""The command to repair a table: the ranges of its key that differ are read again, and then proven.

Comes in: a table of which the newest verdict of a lake says that it differs. Goes out, in one transaction: a dump with
the ranges that its verification was about (`focus`), of cause `repair`. The agent reads these ranges alone, the ledger
follows its chunks as those of any dump, and so do pause, limit and cancel. What it has healed is proven afterwards
(`repair_proofs`).

A kill leaves all of such a transaction or nothing. A repair that failed can be resumed, or ordered again, as long as
its verdict is the newest. Nothing is said to be equal here: the lake says that, once it has compared.
"""

from dataclasses import dataclass, replace

from menura.errors import MenuraError
from menura.landed_digest import LandedFocus, decode_focus, united
from menura.naming import TableName, command_table, sync_resync
from sqlalchemy import Connection, select

from controlplane_api.dump_lives import DEFAULT_OPTIONS, OF_PARTS, REPAIR, VERIFICATION, DumpOptions, create_focused
from controlplane_api.dumps import refusal, running_dumps, synced_tables
from controlplane_api.errors import RepairImpossible
from controlplane_api.models import AnyRow, Dump, Lake, Source, Sync, Tenant, Verdict
from controlplane_api.states import DumpEnd, Proof
from controlplane_api.syncs import lock_source
from controlplane_api.verdicts import judged

_DATA = "Nothing was read or changed."


@dataclass(frozen=True, slots=True)
class Repair:
    """What would be read again, or is."""

    #: the verification that says what differs, and the lake in which it does
    verdict: AnyRow
    lake: str
    #: columns of the key that its ranges are of
    key: tuple[str, ...]
    #: ranges that follow each other, and why
    focus: LandedFocus

    @property
    def estimated_rows(self) -> int:
        """By what the source had there when it was compared."""
        return sum(each.rows for each in self.focus.ranges)


def plan(connection: Connection, source_id: int, name: TableName) -> Repair:
    """What a repair of the table would read again. The source's row gets locked. Raises why it can't be."""
    lock_source(connection, source_id)
    row = synced_tables(connection, source_id, [name]).get(name)
    refused = refusal(name, row, running_dumps(connection, source_id))
    if refused is not None:
        raise refused
    assert row is not None
    if row.earlier_rows_missing or row.start is not None:
        why = row.earlier_rows_missing or "its sync has not begun"
        raise _impossible(row.source, name, f"the lake lacks rows of it: {why}")
    verdict, lake = _differing(connection, row.source, source_id, name)
    found = connection.execute(
        select(Dump).where(Dump.source_id == source_id, Dump.uuid == verdict.verification, Dump.table_id == row.id)
    ).first()
    if found is None:
        why = "the verification that found it is no longer known"
        raise _impossible(row.source, name, why, _verify(row.source, name))
    _check_newest(connection, row.source, name, found)
    focus = decode_focus(found.focus) if found.focus is not None else LandedFocus()
    if not focus.ranges:
        raise _impossible(
            row.source, name, "it was compared in one snapshot, so that what differs is no range of its key"
        )
    keys = connection.execute(select(Sync.foreign_keys).where(Sync.table_id == row.id)).scalar()
    if keys and keys.get("foreign_keys"):
        why = "the lake carries out what its foreign keys do, and has to know which rows it had when"
        raise _impossible(row.source, name, why)
    key = tuple(found.key[: len(focus.kinds) or None])
    return Repair(verdict, lake, key, replace(focus, ranges=united(focus.ranges), bits=0, buckets=()))


def order(
    connection: Connection, source_id: int, name: TableName, options: DumpOptions = DEFAULT_OPTIONS
) -> tuple[str, Repair]:
    """Order it; its UUID. Raises what `plan` does."""
    found = plan(connection, source_id, name)
    table_id = synced_tables(connection, source_id, [name])[name].id
    return create_focused(connection, source_id, table_id, options, REPAIR, found.focus), found


def _differing(connection: Connection, source: str, source_id: int, name: TableName) -> tuple[AnyRow, str]:
    """The newest verdict that says so, of a lake of which nothing has shown since that it is equal."""
    tenant = connection.execute(
        select(Tenant.name).join(Source, Source.tenant_id == Tenant.id).where(Source.id == source_id)
    ).scalar_one()
    rows = connection.execute(
        select(Verdict, Lake.name.label("lake")).join(Lake, Lake.id == Verdict.lake_id)
        .where(
            Verdict.tenant == tenant, Verdict.source == source, Verdict.database == name[0], Verdict.name == name[1]
        )
        .order_by(Verdict.id.desc())
    ).all()  # fmt: skip
    differing = []
    states = set()
    for lake in {row.lake for row in rows}:
        of_lake = [row for row in rows if row.lake == lake]
        state, _ = judged(of_lake)
        states.add(state)
        if state is Proof.DIFFERS:
            differing.append(next(row for row in of_lake if row.verdict == Proof.DIFFERS))
    if not differing:
        known = ", ".join(sorted(states)) or Proof.NEVER
        raise _impossible(source, name, f"no verification says that it differs: {known}", _verify(source, name))
    newest = max(differing, key=lambda row: row.id)
    return newest, newest.lake


def _check_newest(connection: Connection, source: str, name: TableName, verification: AnyRow) -> None:
    """Raises `RepairImpossible` where the table's rows were read again after it."""
    later = connection.execute(
        select(Dump.uuid, Dump.cause)
        .where(
            Dump.table_id == verification.table_id, Dump.id > verification.id, Dump.state == DumpEnd.DONE,
            Dump.cause != VERIFICATION,
        )
        .limit(1)
    ).first()  # fmt: skip
    if later is not None:
        what = "repair" if later.cause in OF_PARTS else "dump"
        why = f"its newest verdict is older than {what} {later.uuid}, which has read its rows again"
        raise _impossible(source, name, why, f"Wait for the verification after it, or {_verify(source, name, 'run')}")


def _verify(source: str, name: TableName, word: str = "Run") -> str:
    return f"{word}: menura verify run {source} {command_table(*name)}"


def _impossible(source: str, name: TableName, why: str, remedy: str = "") -> MenuraError:
    return RepairImpossible(
        "repairing a table",
        why,
        data=_DATA,
        remedy=remedy or f"Have the whole table read again: {sync_resync(source, *name)}",
        database=name[0],
        table=name[1],
    )
