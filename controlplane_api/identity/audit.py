"""The log of what was done, by whom, and of what was refused. Rows are added within the caller's transaction.

A tenant has the newest `MAX_DONE` of what was done, and of refusals the newest `MAX_REFUSALS`: whoever is refused again
and again drives out nobody else's, and nothing that was done. He is held to a rate too (`gateway.audit`,
`gateway.enrolment`, `api.attempts`). The database refuses slips and tools (revision 0039): an UPDATE, and a DELETE
among the newest entries of all, as many as are kept of one tenant. Whoever owns the database can remove its triggers.
"""

from collections.abc import Sequence

from menura.bounds import clean_text
from menura.errors import printable
from menura.instants import now_us
from sqlalchemy import Connection, delete, insert, select

from controlplane_api.models import AnyRow, AuditEntry

#: both are in revision 0039, too
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
    entry = connection.execute(insert(AuditEntry).values(at_us=now_us(), **shown).returning(AuditEntry.id)).scalar_one()
    if entry % LOOK_EVERY == 0:
        for is_of_kind, most in ((AuditEntry.refused != "", MAX_REFUSALS), (AuditEntry.refused == "", MAX_DONE)):
            of_kind = (AuditEntry.tenant == shown["tenant"], is_of_kind)
            newest_over = select(AuditEntry.id).where(*of_kind).order_by(AuditEntry.id.desc()).offset(most).limit(1)
            connection.execute(delete(AuditEntry).where(*of_kind, AuditEntry.id <= newest_over.scalar_subquery()))


def newest(connection: Connection, tenant: str, limit: int, before: int | None = None) -> Sequence[AnyRow]:
    """The newest first, of those before this entry where one is named."""
    statement = select(AuditEntry).where(AuditEntry.tenant == tenant)
    if before is not None:
        statement = statement.where(AuditEntry.id < before)
    return connection.execute(statement.order_by(AuditEntry.id.desc()).limit(limit)).all()
