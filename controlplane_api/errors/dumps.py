"""Dumps, verifications and repairs."""

from controlplane_api.errors.base import RequestError


class DumpUnknown(RequestError):
    """The source has no dump of this name."""

    status = 404
    fix = "The list of dumps has all names."


class DumpRunning(RequestError):
    """A table has one dump at a time."""

    status = 409
    fix = "Wait for the end of the one that runs, or cancel it."


class VerificationImpossible(RequestError):
    """The table can't be compared with its lake now, or at all."""

    status = 409
    fix = "Do what the answer says, or compare the table by a query."


class RepairImpossible(RequestError):
    """Ranges of the table can't be read again by themselves now, or at all."""

    status = 409
    fix = "Verify the table anew, or have all of it read again."


class DumpOver(RequestError):
    """The dump is over."""

    status = 409
    fix = "Begin a new one if the table needs it."


class DumpNotResumable(RequestError):
    """The dump is read in one snapshot, or its sync began anew."""

    status = 409
    fix = "Let it run, or begin a new one."
