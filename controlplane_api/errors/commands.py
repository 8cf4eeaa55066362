"""How commands end."""

from controlplane_api.errors.base import ControlPlaneError


class ListenRefused(ControlPlaneError):
    """An address that is taken, or that others could reach without TLS."""

    exit_code = 23


class ApiUnreachable(ControlPlaneError):
    exit_code = 24
    terminal = False


class ApiFailed(ControlPlaneError):
    """The API answered with a problem, of which `answered` is the code, if it has one."""

    exit_code = 25
    answered = ""


class ComponentFailed(ControlPlaneError):
    """A component of `menura up` doesn't come up."""

    exit_code = 26


class LakeDiffers(ControlPlaneError):
    """Verifications have found tables of the lake that differ from their source."""

    exit_code = 31


class LakeUnproven(ControlPlaneError):
    """Of some tables no verification has shown that the lake is equal to the source."""

    exit_code = 32


class LedgerBroken(ControlPlaneError):
    """An entry of a table's continuity ledger is missing, or is not as it was written."""

    exit_code = 44
