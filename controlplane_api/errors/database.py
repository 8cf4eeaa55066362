"""The control plane's database, and what its cut log tells it."""

from controlplane_api.errors.base import ControlPlaneError


class DatabaseError(ControlPlaneError):
    pass


class DatabaseUnavailable(DatabaseError):
    """The control plane's database can't be reached, or refused."""

    status = 503
    exit_code = 20
    terminal = False
    fix = "Repeat the request later; the operator finds the reason in the API's log."


class DatabaseRefused(DatabaseError):
    """The control plane's database refuses these values, and will whenever they come."""

    status = 422
    exit_code = 27
    fix = "Check the names and numbers of the request; if they are right, report it."


class DatabaseUnsupported(DatabaseError):
    """No SQLite or PostgreSQL URL, or its driver is missing."""

    exit_code = 21


class DatabaseTooNew(DatabaseError):
    """It was written by a newer Menura."""

    exit_code = 22


class EntryOutOfOrder(ControlPlaneError):
    """Cut log entries were applied with a gap."""
