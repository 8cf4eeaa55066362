"""Who holds a source when sessions of one agent follow each other."""

from gateway.presence import Presence


def test_hold_when_the_session_was_replaced_then_the_newer_one_gets_the_source() -> None:
    presence = Presence()
    older = presence.open("acme", "agent-1", "older")
    assert presence.hold(older, ["shop"]) == ["shop"]
    newer = presence.open("acme", "agent-1", "newer")
    assert presence.hold(older, ["shop"]) == []
    assert presence.hold(newer, ["shop"]) == ["shop"]
