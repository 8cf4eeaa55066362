"""The log of what was done and refused about who is who. Rows are added within the caller's transaction.

What was done stays. Of refusals a tenant has the newest `MAX_REFUSALS`, so that whoever is refused again and again
drives out nobody else's; he is held to a rate too (`gateway.audit`, `gateway.enrolment`).
"""

from collections.abc import Sequence

from menura.bounds import clean_text
from menura.errors import printable
from menura.instants import now_us
from sqlalchemy import Connection, delete, insert, select

from controlplane_api.models import AnyRow, AuditEntry

MAX_REFUSALS = 100_000
#: entries between two looks at how many there are
LOOK_EVERY = 1_000
MAX_CHARS = 2_000


def record(connection: Connection, tenant: str, actor: str, action: str, *, refused: str = "", found: str = "") -> None:
    """`actor`: who did or wanted it, e.g. an agent, an address. No secret is among these."""
    texts = {"tenant": tenant, "actor": actor, "action": action, "refused": refused, "found": found}
    shown = {name: clean_text(printable(text)[:MAX_CHARS]) for name, text in texts.items()}
    entry = connection.execute(insert(AuditEntry).values(at_us=now_us(), **shown).returning(AuditEntry.id)).scalar_one()
    if entry % LOOK_EVERY == 0:
        refusals = (AuditEntry.tenant == shown["tenant"], AuditEntry.refused != "")
        newest_over = (
            select(AuditEntry.id).where(*refusals).order_by(AuditEntry.id.desc()).offset(MAX_REFUSALS).limit(1)
        )
        connection.execute(delete(AuditEntry).where(*refusals, AuditEntry.id <= newest_over.scalar_subquery()))


def newest(connection: Connection, tenant: str, limit: int, before: int | None = None) -> Sequence[AnyRow]:
    """The newest first, of those before this entry where one is named."""
    statement = select(AuditEntry).where(AuditEntry.tenant == tenant)
    if before is not None:
        statement = statement.where(AuditEntry.id < before)
    return connection.execute(statement.order_by(AuditEntry.id.desc()).limit(limit)).all()
