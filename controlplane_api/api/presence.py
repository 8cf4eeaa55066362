"""Whether an agent is connected and a sink is heard of, by what the database knows of them."""

#: an agent that says nothing for longer is not connected, whatever its last gateway wrote before it died
PRESENCE_SECONDS = 30


def is_present(connected: bool, seen_at_us: int, now: int) -> bool:
    return connected and now - seen_at_us < PRESENCE_SECONDS * 1_000_000


#: a lake whose sink says nothing for longer is not known any more; a sink reports every few seconds
SILENT_SECONDS = 20


def is_heard(received_at_us: int, now: int) -> bool:
    """Whether a sink's last report is new. After this machine's clock went back, only the next one is."""
    return abs(now - received_at_us) < SILENT_SECONDS * 1_000_000
