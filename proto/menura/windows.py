"""Times of the day: when heavy work may run.

A window is written "22:00-06:00 Europe/Berlin", without a zone in UTC; it may go over midnight. Pure: the clock is the
caller's.
"""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

_MINUTES_PER_DAY = 24 * 60
_TEXT = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-4]):([0-5][0-9])(?: +(\S+))?")


class WindowInvalid(ValueError):
    """Text that is no window; says why."""


@dataclass(frozen=True, slots=True)
class Window:
    #: minutes of the day; the end is not in it and may be before the begin
    begin_minute: int
    end_minute: int
    zone: "ZoneInfo"

    @classmethod
    def parse(cls, text: str) -> "Window":
        """Raises `WindowInvalid`.

        >>> str(Window.parse("22:00-06:30 Europe/Berlin"))
        '22:00-06:30 Europe/Berlin'
        """
        found = _TEXT.fullmatch(text.strip())
        if found is None:
            raise WindowInvalid('is not "HH:MM-HH:MM ZONE"')
        begin = int(found[1]) * 60 + int(found[2])
        end = int(found[3]) * 60 + int(found[4])
        if end > _MINUTES_PER_DAY or begin == end % _MINUTES_PER_DAY:
            raise WindowInvalid("is no part of a day")
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # noqa: PLC0415  (an agent without windows needs no zone)

        try:
            zone = ZoneInfo(found[5] or "UTC")
        except (ZoneInfoNotFoundError, ValueError, OSError) as unknown:
            raise WindowInvalid(f"names the time zone {found[5]}, which this host does not know") from unknown
        return cls(begin, end % _MINUTES_PER_DAY, zone)

    def __str__(self) -> str:
        return f"{_clock(self.begin_minute)}-{_clock(self.end_minute)} {self.zone.key}"

    @property
    def share(self) -> Fraction:
        """Of a day.

        >>> Window.parse("22:00-04:00").share
        Fraction(1, 4)
        """
        return Fraction((self.end_minute - self.begin_minute) % _MINUTES_PER_DAY, _MINUTES_PER_DAY)

    def is_open(self, now: datetime) -> bool:
        """`now` has a zone."""
        local = now.astimezone(self.zone)
        minute = local.hour * 60 + local.minute
        if self.begin_minute < self.end_minute:
            return self.begin_minute <= minute < self.end_minute
        return minute >= self.begin_minute or minute < self.end_minute

    def opens_at(self, now: datetime) -> datetime:
        """The next beginning after `now`, in the window's zone."""
        local = now.astimezone(self.zone)
        begin = local.replace(hour=self.begin_minute // 60, minute=self.begin_minute % 60, second=0, microsecond=0)
        return begin if begin > local else begin + timedelta(days=1)


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"
