"""Whether an agent is connected and a sink is heard of, by what the database knows of them.

Times are of this machine's clock or a gateway's. After a clock went back, what seems to have come later than now counts
as old: else somebody who has gone would be there for as long as the clock went back.
"""

#: an agent that says nothing for longer is not connected, whatever its last gateway wrote before it died
PRESENCE_SECONDS = 30
#: a lake whose sink says nothing for longer is not known any more; a sink reports every few seconds
SILENT_SECONDS = 20


def is_recent(at_us: int, now: int, seconds: float) -> bool:
    """Whether it was at most so long ago.

    >>> is_recent(7_000_000, 9_000_000, 3), is_recent(7_000_000, 19_000_000, 3), is_recent(19_000_000, 7_000_000, 3)
    (True, False, False)
    """
    return abs(now - at_us) < seconds * 1_000_000


def is_present(connected: bool, seen_at_us: int, now: int) -> bool:
    return connected and is_recent(seen_at_us, now, PRESENCE_SECONDS)


def is_of_connection(at_us: int, connected_at_us: int, now: int) -> bool:
    """Whether an agent has said it in its present connection, as far as times tell: one from after now tells nothing.

    >>> is_of_connection(7, 5, 9), is_of_connection(3, 5, 9), is_of_connection(3, 5, 4)
    (True, False, True)
    """
    return at_us >= connected_at_us or connected_at_us > now


def is_heard(received_at_us: int, now: int) -> bool:
    """Whether a sink's last report is new."""
    return is_recent(received_at_us, now, SILENT_SECONDS)
