"""The log of what was done and refused about who is who. Rows are added within the caller's transaction.

It keeps the newest `MAX_ENTRIES`. Whoever can add refusals is held to a rate (`gateway.audit`, `gateway.enrolment`).
"""

from collections.abc import Sequence

from menura.bounds import clean_text
from menura.errors import printable
from menura.instants import now_us
from sqlalchemy import Connection, delete, insert, select

from controlplane_api.models import AnyRow, AuditEntry

MAX_ENTRIES = 100_000
#: entries between two looks at how many there are
_LOOK_EVERY = 1_000
MAX_CHARS = 2_000


def record(connection: Connection, tenant: str, actor: str, action: str, *, refused: str = "", found: str = "") -> None:
    """`actor`: who did or wanted it, e.g. an agent, an address. No secret is among these."""
    texts = {"tenant": tenant, "actor": actor, "action": action, "refused": refused, "found": found}
    shown = {name: clean_text(printable(text)[:MAX_CHARS]) for name, text in texts.items()}
    entry = connection.execute(insert(AuditEntry).values(at_us=now_us(), **shown).returning(AuditEntry.id)).scalar_one()
    if entry % _LOOK_EVERY == 0:
        connection.execute(delete(AuditEntry).where(AuditEntry.id <= entry - MAX_ENTRIES))


def newest(connection: Connection, tenant: str, limit: int) -> Sequence[AnyRow]:
    """The newest first."""
    return connection.execute(
        select(AuditEntry).where(AuditEntry.tenant == tenant).order_by(AuditEntry.id.desc()).limit(limit)
    ).all()
