"""Whether an agent is connected, by what the database knows of it."""

#: an agent that says nothing for longer is not connected, whatever its last gateway wrote before it died
PRESENCE_SECONDS = 30


def is_present(connected: bool, seen_at_us: int, now: int) -> bool:
    return connected and now - seen_at_us < PRESENCE_SECONDS * 1_000_000
