"""What can go wrong at the gateway, as an operator or an agent reads it.

::

    GatewayError
    ├── ListenRefused           LISTEN_REFUSED            the address can't be used as it is configured
    ├── LandingUnusable         LANDING_UNUSABLE          the landing URL names nothing that can be written
    ├── LogUnreadable           LOG_UNREADABLE            an entry of the cut log can't be read
    ├── LogBehindRegistry       LOG_BEHIND_REGISTRY       the database knows entries that the log lacks
    ├── RegistryFault           REGISTRY_FAULT            the database broke its promise
    ├── GatewayFault            INTERNAL                  a defect of the gateway itself
    ├── StreamError             an agent broke the protocol; its stream ends, nothing of it is committed
    │   ├── ProtocolVersion     PROTOCOL_VERSION
    │   ├── HelloMissing        HELLO_MISSING
    │   ├── HeaderInvalid       HEADER_INVALID
    │   ├── StreamOutOfSequence STREAM_OUT_OF_SEQUENCE
    │   ├── RequestUnsupported  REQUEST_TYPE_UNSUPPORTED
    │   ├── PayloadInvalid      PAYLOAD_INVALID
    │   ├── CreditOverdrawn     CREDIT_OVERDRAWN
    │   ├── OutOfSequence       OUT_OF_SEQUENCE           a cut or a row number out of turn
    │   ├── BatchInvalid        BATCH_INVALID             bytes of a change batch that can't be read
    │   ├── BatchTooLarge       BATCH_TOO_LARGE
    │   ├── BatchColumns        BATCH_COLUMNS             columns other than the contract's
    │   ├── TableNotDesired     TABLE_NOT_DESIRED
    │   ├── DumpNotDesired      DUMP_NOT_DESIRED
    │   └── DumpPlanChanged     DUMP_PLAN_CHANGED         ends the dump, not the stream
    └── Unsettled               transient: the agent opens the stream again and reads from the committed position
        ├── SessionUnknown      SESSION_UNKNOWN
        ├── SessionReplaced     SESSION_REPLACED
        ├── SourceHeld          SOURCE_HELD
        ├── StreamSuperseded    STREAM_SUPERSEDED
        ├── LeaseLost           LEASE_LOST
        ├── LandingFailed       LANDING_FAILED
        │   └── LogUnsettled    LOG_UNSETTLED
        ├── LogEntryTaken       LOG_ENTRY_TAKEN
        ├── ChunksLost          CHUNKS_LOST               a cut that named chunks of a dump was not committed
        ├── RegistryAway        REGISTRY_UNAVAILABLE
        └── GatewayStopping     GATEWAY_STOPPING
"""

from menura.errors import MenuraError
from menura.instants import now_us
from menura.v1.error_pb2 import Error

NOTHING_LOST = "Nothing of it was committed; the agent reads again from the last committed position"


class GatewayError(MenuraError):
    """Base of all that the gateway reports."""

    code = "GATEWAY"


class ListenRefused(GatewayError):
    code = "LISTEN_REFUSED"
    exit_code = 3


class LandingUnusable(GatewayError):
    code = "LANDING_UNUSABLE"
    exit_code = 4


class LogUnreadable(GatewayError):
    code = "LOG_UNREADABLE"
    exit_code = 5


class LogBehindRegistry(GatewayError):
    code = "LOG_BEHIND_REGISTRY"
    exit_code = 6


class RegistryFault(GatewayError):
    code = "REGISTRY_FAULT"
    exit_code = 7


class GatewayFault(GatewayError):
    code = "INTERNAL"
    terminal = False


class StreamError(GatewayError):
    code = "STREAM_ERROR"


class ProtocolVersion(StreamError):
    code = "PROTOCOL_VERSION"


class HelloMissing(StreamError):
    code = "HELLO_MISSING"


class HeaderInvalid(StreamError):
    code = "HEADER_INVALID"


class StreamOutOfSequence(StreamError):
    code = "STREAM_OUT_OF_SEQUENCE"
    terminal = False


class RequestUnsupported(StreamError):
    code = "REQUEST_TYPE_UNSUPPORTED"


class PayloadInvalid(StreamError):
    code = "PAYLOAD_INVALID"


class CreditOverdrawn(StreamError):
    code = "CREDIT_OVERDRAWN"


class OutOfSequence(StreamError):
    code = "OUT_OF_SEQUENCE"
    terminal = False


class BatchInvalid(StreamError):
    code = "BATCH_INVALID"


class BatchTooLarge(StreamError):
    code = "BATCH_TOO_LARGE"


class BatchColumns(StreamError):
    code = "BATCH_COLUMNS"


class TableNotDesired(StreamError):
    code = "TABLE_NOT_DESIRED"


class DumpNotDesired(StreamError):
    """Transient: a dump may have ended while its agent was away."""

    code = "DUMP_NOT_DESIRED"
    terminal = False


class DumpPlanChanged(StreamError):
    """Never raised: the dump is recorded as failed for it, and the source's other dumps go on."""

    code = "DUMP_PLAN_CHANGED"


class Unsettled(GatewayError):
    code = "UNSETTLED"
    terminal = False


class SessionUnknown(Unsettled):
    code = "SESSION_UNKNOWN"


class SessionReplaced(Unsettled):
    """Terminal for the older process: two processes with one configuration would replace each other for ever."""

    code = "SESSION_REPLACED"
    terminal = True


class SourceHeld(Unsettled):
    code = "SOURCE_HELD"


class StreamSuperseded(Unsettled):
    code = "STREAM_SUPERSEDED"


class LeaseLost(Unsettled):
    code = "LEASE_LOST"


class LandingFailed(Unsettled):
    code = "LANDING_FAILED"


class LogUnsettled(LandingFailed):
    """The entry may still appear, so its files stay."""

    code = "LOG_UNSETTLED"


class LogEntryTaken(Unsettled):
    code = "LOG_ENTRY_TAKEN"


class ChunksLost(Unsettled):
    code = "CHUNKS_LOST"


class RegistryAway(Unsettled):
    code = "REGISTRY_UNAVAILABLE"


class GatewayStopping(Unsettled):
    code = "GATEWAY_STOPPING"


def as_message(error: MenuraError) -> Error:
    """The error as it travels to an agent."""
    return Error(
        code=error.code,
        doing=error.doing,
        found=error.found,
        data=error.data,
        remedy=error.remedy,
        source=error.source,
        database=error.database,
        table=error.table,
        position=error.position,
        terminal=error.terminal,
        at_us=now_us(),
    )
