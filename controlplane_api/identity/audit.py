"""The log of what was done, by whom, and of what was refused. Rows are added within the caller's transaction.

A tenant has the newest `MAX_DONE` of what was done, and of refusals the newest `MAX_REFUSALS`: whoever is refused again
and again drives out nobody else's, and nothing that was done. He is held to a rate too (`gateway.audit`,
`gateway.enrolment`, `api.attempts`). The database refuses slips and tools (revision 0040): an UPDATE, and a DELETE
among what is kept of the tenant. Whoever owns the database can remove its triggers.

A search looks at no more than `MOST_LOOKED_AT` entries, and says where it has ended: the next one goes on from there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from menura.bounds import clean_text
from menura.errors import printable
from menura.instants import now_us
from sqlalchemy import ColumnElement, Connection, Select, delete, func, insert, or_, select, tuple_
from sqlalchemy.orm import aliased

from controlplane_api.models import AnyRow, AuditEntry
from controlplane_api.states import AuditOutcome

#: both are in revision 0040, too
MAX_REFUSALS = 100_000
#: some hundred bytes each
MAX_DONE = 1_000_000
#: entries between two looks at how many there are
LOOK_EVERY = 1_000
MAX_CHARS = 2_000
#: by one search
MOST_LOOKED_AT = 5_000
#: no entry's id is greater
_GREATEST_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Found:
    rows: Sequence[AnyRow]
    #: entries, those that do not match included
    looked_at: int
    #: where to go on; None: there is no older entry
    before: int | None


def record(
    connection: Connection,
    tenant: str,
    actor: str,
    action: str,
    *,
    refused: str = "",
    failed: bool = False,
    found: str = "",
) -> None:
    """`actor`: who did or wanted it, e.g. an agent, an address. No secret is among these.

    `refused`: the code of the error; `failed`: which is none of a refusal.
    """
    texts = {"tenant": tenant, "actor": actor, "action": action, "refused": refused, "found": found}
    shown = {name: clean_text(printable(text)[:MAX_CHARS]) for name, text in texts.items()}
    number = AuditEntry.number
    edge, step, is_of_kind = (func.min(number), -1, number < 0) if refused else (func.max(number), 1, number > 0)
    of_kind = (AuditEntry.tenant == shown["tenant"], is_of_kind)
    next_number = select(func.coalesce(edge, 0) + step).where(*of_kind).scalar_subquery()
    added = insert(AuditEntry).values(at_us=now_us(), number=next_number, failed=failed, **shown).returning(number)
    newest: int = connection.execute(added).scalar_one()
    if newest % LOOK_EVERY == 0:
        is_over = number >= newest + MAX_REFUSALS if refused else number <= newest - MAX_DONE
        connection.execute(delete(AuditEntry).where(*of_kind, is_over))


def outcome_of(row: AnyRow) -> AuditOutcome:
    if row.failed:
        return AuditOutcome.FAILED
    return AuditOutcome.REFUSED if row.refused else AuditOutcome.DONE


def search(
    connection: Connection,
    tenant: str,
    limit: int,
    *,
    text: str = "",
    outcome: AuditOutcome | None = None,
    before: int | None = None,
) -> Found:
    """The newest first, of those before this entry where one is named.

    Several statements ask for it: the caller's transaction reads one moment (`read_one_moment`), or pages may repeat
    rows.

    `text`: part of who, what, the code or what was found, in small letters or capitals, where they are ASCII.
    """
    window = newest_first(tenant, before).limit(MOST_LOOKED_AT).subquery()
    entry = aliased(AuditEntry, window)
    matching: list[ColumnElement[bool]] = []
    if text:
        parts = (entry.actor, entry.action, entry.refused, entry.found)
        matching.append(or_(*(part.icontains(text, autoescape=True) for part in parts)))
    if outcome is not None:
        matching.append(_is(outcome, entry))
    rows = connection.execute(select(window).where(*matching).order_by(window.c.id.desc()).limit(limit + 1)).all()
    if len(rows) > limit:
        shown = rows[:limit]
        looked_at = select(func.count()).select_from(window).where(window.c.id >= shown[-1].id)
        return Found(shown, connection.execute(looked_at).scalar_one(), shown[-1].id)
    looked_at, oldest = connection.execute(select(func.count(), func.min(window.c.id)).select_from(window)).one()
    if looked_at < MOST_LOOKED_AT:
        return Found(rows, looked_at, None)
    older = connection.execute(newest_first(tenant, oldest).limit(1)).first()
    return Found(rows, looked_at, None if older is None else oldest)


def newest_first(tenant: str, before: int | None) -> Select[AuditEntry]:
    """Rows are compared, in the order of `ix_audit_tenant_id`.

    For "tenant = ... ORDER BY id DESC" a database may walk the primary key instead, past all entries that others have
    made since.
    """
    place = tuple_(AuditEntry.tenant, AuditEntry.id)
    is_older = place < tuple_(tenant, _GREATEST_ID if before is None else before)
    is_of_tenant = place > tuple_(tenant, 0)
    return select(AuditEntry).where(is_older, is_of_tenant).order_by(AuditEntry.tenant.desc(), AuditEntry.id.desc())


def _is(outcome: AuditOutcome, entry: type[AuditEntry]) -> ColumnElement[bool]:
    match outcome:
        case AuditOutcome.DONE:
            return entry.refused == ""
        case AuditOutcome.FAILED:
            return entry.failed.is_(True)
        case AuditOutcome.REFUSED:
            return (entry.refused != "") & entry.failed.is_(False)
