"""Whether an agent is connected and a sink is heard of, by what the database knows of them.

Times are of this machine's clock or a gateway's. What seems to have come much later than now, after a clock went back,
counts as old: else somebody who has gone would be there for as long as the clock went back.
"""

from sqlalchemy import ColumnElement, and_

from controlplane_api.models import Agent

#: by which the clock of a gateway's machine may be ahead of this one's
AHEAD_SECONDS = 30

#: an agent that says nothing for longer is not connected, whatever its last gateway wrote before it died
PRESENCE_SECONDS = 30
#: a lake whose sink says nothing for longer is not known any more; a sink reports every few seconds
SILENT_SECONDS = 20


def is_recent(at_us: int, now: int, seconds: float) -> bool:
    """Whether it was at most so long ago.

    >>> [is_recent(at_us, 60_000_000, 3) for at_us in (58_000_000, 56_000_000, 80_000_000, 95_000_000)]
    [True, False, True, False]
    """
    return -max(seconds, AHEAD_SECONDS) * 1_000_000 < now - at_us < seconds * 1_000_000


def is_present(connected: bool, seen_at_us: int, now: int) -> bool:
    return connected and is_recent(seen_at_us, now, PRESENCE_SECONDS)


def presence(now: int) -> ColumnElement[bool]:
    """`is_present` of an agent's row, as a condition."""
    ahead, behind = (seconds * 1_000_000 for seconds in (max(PRESENCE_SECONDS, AHEAD_SECONDS), PRESENCE_SECONDS))
    return and_(Agent.connected, Agent.seen_at_us > now - behind, Agent.seen_at_us < now + ahead)


def is_of_connection(at_us: int, connected_at_us: int, now: int) -> bool:
    """Whether an agent has said it in its present connection, as far as times tell: one from after now tells nothing.

    >>> is_of_connection(7, 5, 9), is_of_connection(3, 5, 9), is_of_connection(3, 5, 4)
    (True, False, True)
    """
    return at_us >= connected_at_us or connected_at_us > now


def is_heard(received_at_us: int, now: int) -> bool:
    """Whether a sink's last report is new."""
    return is_recent(received_at_us, now, SILENT_SECONDS)
