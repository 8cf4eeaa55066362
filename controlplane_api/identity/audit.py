"""The log of what was done, by whom, and of what was refused. Rows are added within the caller's transaction.

A tenant has the newest `MAX_DONE` of what was done, and of refusals the newest `MAX_REFUSALS`: whoever is refused again
and again drives out nobody else's, and nothing that was done. He is held to a rate too (`gateway.audit`,
`gateway.enrolment`, `api.attempts`). The database refuses slips and tools (revision 0040): an UPDATE, and a DELETE
among what is kept of the tenant. Whoever owns the database can remove its triggers.
"""

from collections.abc import Sequence

from menura.bounds import clean_text
from menura.errors import printable
from menura.instants import now_us
from sqlalchemy import Connection, delete, func, insert, select

from controlplane_api.models import AnyRow, AuditEntry

#: both are in revision 0040, too
MAX_REFUSALS = 100_000
#: some hundred bytes each
MAX_DONE = 1_000_000
#: entries between two looks at how many there are
LOOK_EVERY = 1_000
MAX_CHARS = 2_000


def record(connection: Connection, tenant: str, actor: str, action: str, *, refused: str = "", found: str = "") -> None:
    """`actor`: who did or wanted it, e.g. an agent, an address. No secret is among these."""
    texts = {"tenant": tenant, "actor": actor, "action": action, "refused": refused, "found": found}
    shown = {name: clean_text(printable(text)[:MAX_CHARS]) for name, text in texts.items()}
    number = AuditEntry.number
    edge, step, is_of_kind = (func.min(number), -1, number < 0) if refused else (func.max(number), 1, number > 0)
    of_kind = (AuditEntry.tenant == shown["tenant"], is_of_kind)
    next_number = select(func.coalesce(edge, 0) + step).where(*of_kind).scalar_subquery()
    added = insert(AuditEntry).values(at_us=now_us(), number=next_number, **shown).returning(number)
    newest: int = connection.execute(added).scalar_one()
    if newest % LOOK_EVERY == 0:
        is_over = number >= newest + MAX_REFUSALS if refused else number <= newest - MAX_DONE
        connection.execute(delete(AuditEntry).where(*of_kind, is_over))


def newest(connection: Connection, tenant: str, limit: int, before: int | None = None) -> Sequence[AnyRow]:
    """The newest first, of those before this entry where one is named."""
    statement = select(AuditEntry).where(AuditEntry.tenant == tenant)
    if before is not None:
        statement = statement.where(AuditEntry.id < before)
    return connection.execute(statement.order_by(AuditEntry.id.desc()).limit(limit)).all()
