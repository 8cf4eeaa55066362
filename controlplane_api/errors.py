"""Failures of the control plane that an operator or a caller of the API can see.

::

    MenuraError
    └── ControlPlaneError
        ├── DatabaseError
        │   ├── DatabaseUnavailable     503, exit 20   can't be reached, or refused
        │   ├── DatabaseUnsupported          exit 21   no SQLite or PostgreSQL URL, or its driver is missing
        │   └── DatabaseTooNew               exit 22   written by a newer Menura
        ├── EntryOutOfOrder                            cut log entries were applied with a gap
        ├── RequestError                               what a caller of the API did wrong
        │   ├── RequestInvalid          422, exit 2
        │   ├── SourceUnknown           404
        │   ├── TableUnknown            404
        │   ├── PathUnknown             404 or 405
        │   ├── SyncRunning             409            start at another place while it runs
        │   ├── SyncNotRunning          409            a dump beside a stream that there is not
        │   ├── DumpUnknown             404
        │   ├── DumpRunning             409            a second dump of one table
        │   ├── DumpOver                409
        │   ├── DumpNotResumable        409            it is read in one snapshot, or its sync began anew
        │   ├── TableDenied             409            the agent's local policy refuses it
        │   └── CrossSiteRefused        403            not this dashboard's page, or not JSON
        ├── ListenRefused                    exit 23   an address that is not loopback, or is taken
        ├── ApiUnreachable                   exit 24
        ├── ApiFailed                        exit 25   the API answered with a problem
        └── ComponentFailed                  exit 26   `menura up`: a component doesn't come up
"""

from typing import ClassVar

from menura.errors import MenuraError


class ControlPlaneError(MenuraError):
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1


class DatabaseError(ControlPlaneError):
    pass


class DatabaseUnavailable(DatabaseError):
    code = "DATABASE_UNAVAILABLE"
    status = 503
    exit_code = 20
    terminal = False


class DatabaseUnsupported(DatabaseError):
    code = "DATABASE_UNSUPPORTED"
    exit_code = 21


class DatabaseTooNew(DatabaseError):
    code = "DATABASE_TOO_NEW"
    exit_code = 22


class EntryOutOfOrder(ControlPlaneError):
    code = "ENTRY_OUT_OF_ORDER"


class RequestError(ControlPlaneError):
    pass


class RequestInvalid(RequestError):
    code = "REQUEST_INVALID"
    status = 422
    exit_code = 2


class SourceUnknown(RequestError):
    code = "SOURCE_UNKNOWN"
    status = 404


class TableUnknown(RequestError):
    code = "TABLE_UNKNOWN"
    status = 404


class PathUnknown(RequestError):
    code = "PATH_UNKNOWN"
    status = 404


class SyncRunning(RequestError):
    code = "SYNC_RUNNING"
    status = 409


class SyncNotRunning(RequestError):
    code = "SYNC_NOT_RUNNING"
    status = 409


class DumpUnknown(RequestError):
    code = "DUMP_UNKNOWN"
    status = 404


class DumpRunning(RequestError):
    code = "DUMP_RUNNING"
    status = 409


class DumpOver(RequestError):
    code = "DUMP_OVER"
    status = 409


class DumpNotResumable(RequestError):
    code = "DUMP_NOT_RESUMABLE"
    status = 409


class TableDenied(RequestError):
    code = "TABLE_DENIED"
    status = 409


class CrossSiteRefused(RequestError):
    code = "CROSS_SITE_REFUSED"
    status = 403


class ListenRefused(ControlPlaneError):
    code = "LISTEN_REFUSED"
    exit_code = 23


class ApiUnreachable(ControlPlaneError):
    code = "API_UNREACHABLE"
    exit_code = 24
    terminal = False


class ApiFailed(ControlPlaneError):
    code = "API_FAILED"
    exit_code = 25


class ComponentFailed(ControlPlaneError):
    code = "COMPONENT_FAILED"
    exit_code = 26
