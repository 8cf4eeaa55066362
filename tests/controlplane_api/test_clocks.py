"""What is good for a time, when the host's clock goes back."""

from datetime import timedelta
from pathlib import Path

import pytest
from menura.instants import now_us

from controlplane_api.database import Database
from controlplane_api.identity import api_tokens
from controlplane_api.identity.api_tokens import SKEW_US
from controlplane_api.identity.authority import SqlAuthority
from controlplane_api.identity.callers import Grant, Role

HOUR_US = 3_600_000_000


@pytest.fixture(params=["sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_token_when_the_clock_was_ahead_as_it_was_made_then_it_is_not_good_for_longer_than_its_life(
    database: Database,
) -> None:
    made_at, grant = now_us(), Grant(Role.VIEWER, "acme")
    with database.write() as connection:
        bounded = api_tokens.create(connection, grant, "an hour", "a", made_at, 3_600)
        lasting = api_tokens.create(connection, grant, "for ever", "a", made_at, None)
    with database.read() as connection:
        for now, is_good in (
            (made_at - SKEW_US - 1, False),
            (made_at - SKEW_US, True),
            (made_at + HOUR_US - 1, True),
            (made_at + HOUR_US, False),
        ):
            for token, expected in ((bounded, is_good), (lasting, True)):
                row = api_tokens.row_of(connection, token.id)
                assert row is not None
                assert api_tokens.is_live(row, now) == expected
                assert bool(api_tokens.live_callers(connection, [row.id], now)) == expected


def test_certificate_of_the_gateway_when_the_clock_was_ahead_as_it_was_made_then_another_is_due(
    database: Database, tmp_path: Path
) -> None:
    made = SqlAuthority(database, tmp_path / "ca", timedelta(hours=3)).certify_gateway()
    now = now_us()
    assert not made.is_due(now)
    assert made.is_due(now - SKEW_US - 60_000_000)  # agents would call it not yet valid
    assert made.is_due(now + 3 * HOUR_US)
