"""What a session has set that decides how a server converts values. Pure."""

import re
from dataclasses import dataclass

#: bits of sql_mode
_STRICT = 1 << 21 | 1 << 22
NO_ZERO_IN_DATE = 1 << 23
_NO_ZERO_DATE = 1 << 24
ALLOW_INVALID_DATES = 1 << 25
_PAD_CHAR_TO_FULL_LENGTH = 1 << 31
_NO_AUTO_VALUE_ON_ZERO = 1 << 19
_OFFSET = re.compile(r"[+-][0-9]{1,2}:[0-9]{2}")


@dataclass(frozen=True, slots=True)
class Session:
    """What decides how a server converts, besides the types."""

    mariadb: bool
    #: None: not known, as where a tool copies the rows by statements that are not seen
    sql_mode: int | None = None
    #: MariaDB's ALTER IGNORE TABLE
    ignore: bool = False
    #: as the statement was logged: only where it was used; '': it was not
    time_zone: str = ""
    #: what SYSTEM stands for; '': not known
    system_time_zone: str = ""

    @property
    def is_strict(self) -> bool:
        """Whether what does not fit is refused, so that there is no conversion."""
        return self._has(_STRICT) and not self.ignore

    @property
    def refuses_odd_dates(self) -> bool:
        """Whether those are refused that no calendar has."""
        return self.is_strict and self._has(_NO_ZERO_DATE) and self._has(NO_ZERO_IN_DATE)

    @property
    def refuses_zero_instants(self) -> bool:
        """The same of a TIMESTAMP, which has no others."""
        return self.is_strict and self._has(_NO_ZERO_DATE)

    @property
    def makes_zero_dates(self) -> bool:
        """Whether a copy of a table makes them of dates that no calendar has."""
        if self.is_strict or self.sql_mode is None:
            return False
        if self.mariadb:
            return self._has(_NO_ZERO_DATE | NO_ZERO_IN_DATE)
        return self._has(NO_ZERO_IN_DATE) or not self._has(ALLOW_INVALID_DATES)

    @property
    def may_shift_instants(self) -> bool:
        """Whether MySQL takes a TIMESTAMP through a local time in which an hour may come twice."""
        if self.mariadb or not self.time_zone:
            return False
        zone = (self.system_time_zone if self.time_zone.upper() == "SYSTEM" else self.time_zone).upper()
        return zone not in ("UTC", "ETC/UTC") and _OFFSET.fullmatch(zone) is None

    @property
    def pads_chars(self) -> bool:
        """Whether a CHAR is read with spaces to its full length."""
        return self._has(_PAD_CHAR_TO_FULL_LENGTH)

    @property
    def keeps_zero(self) -> bool:
        """Whether 0 stays itself in a column that becomes AUTO_INCREMENT."""
        return self._has(_NO_AUTO_VALUE_ON_ZERO)

    def _has(self, mode: int) -> bool:
        """Whether the sql_mode has it; what is not known has nothing."""
        return self.sql_mode is not None and bool(self.sql_mode & mode)
