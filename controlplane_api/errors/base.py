"""What every failure of the control plane says beside its text."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from menura.errors import MenuraError


class ControlPlaneError(MenuraError):
    status: ClassVar[int] = 500
    #: 0: nobody knows when it would be answered
    retry_after_seconds: ClassVar[int] = 0
    fix: ClassVar[str] = ""
    exit_code: ClassVar[int] = 1


class RequestError(ControlPlaneError):
    """What a caller of the API did wrong."""

    @property
    def complaints(self) -> Sequence[Mapping[str, object]]:
        """What is wrong, and where: fields of `api.views.InvalidView`."""
        return ()


class StageSilent(ControlPlaneError):
    """Why tables wait: shown, never raised."""

    terminal = False
