"""What can go wrong at the gateway, as an operator or an agent reads it."""

from menura.errors import MenuraError

NOTHING_LOST = "Nothing of it was committed; the agent reads again from the last committed position"


class GatewayError(MenuraError):
    """Base of all that the gateway reports."""


class ListenRefused(GatewayError):
    """The address can't be used as it is configured."""

    exit_code = 3


class LandingUnusable(GatewayError):
    """The landing URL names nothing that can be written."""

    exit_code = 4


class LogUnreadable(GatewayError):
    """An entry of the cut log can't be read."""

    exit_code = 5


class LogBehindRegistry(GatewayError):
    """The database knows entries that the log lacks."""

    exit_code = 6


class GatewayNameTaken(GatewayError):
    """Another process runs under this gateway's name."""

    exit_code = 3


class OtherLanding(GatewayError):
    """The landing is another one than the database's."""

    exit_code = 6


class RegistryFault(GatewayError):
    """The database broke its promise."""

    exit_code = 7


class GatewayFault(GatewayError):
    """A defect of the gateway itself."""

    code = "INTERNAL"
    terminal = False


class StreamError(GatewayError):
    """An agent broke the protocol; its stream ends, nothing of it is committed."""


class ProtocolVersion(StreamError):
    pass


class HelloMissing(StreamError):
    pass


class HeaderInvalid(StreamError):
    pass


class StreamOutOfSequence(StreamError):
    terminal = False


class RequestUnsupported(StreamError):
    code = "REQUEST_TYPE_UNSUPPORTED"


class PayloadInvalid(StreamError):
    pass


class CreditOverdrawn(StreamError):
    pass


class OutOfSequence(StreamError):
    """A cut or a row number is out of turn."""

    terminal = False


class BatchInvalid(StreamError):
    """Bytes of a change batch that can't be read."""


class BatchTooLarge(StreamError):
    pass


class BatchColumns(StreamError):
    """Columns other than the contract's."""


class TableNotDesired(StreamError):
    pass


class DumpNotDesired(StreamError):
    """Transient: a dump may have ended while its agent was away."""

    terminal = False


class PackageNotDesired(StreamError):
    """Transient: what an agent shall run may have changed while it asked."""

    terminal = False


class DumpPlanChanged(StreamError):
    """Never raised: the dump is recorded as failed for it, and the source's other dumps go on."""


class Unsettled(GatewayError):
    """Transient: the agent opens the stream again and reads from the committed position."""

    terminal = False


class SessionUnknown(Unsettled):
    pass


class SessionReplaced(Unsettled):
    """Terminal for the older process: two processes with one configuration would replace each other for ever."""

    terminal = True


class SourceHeld(Unsettled):
    pass


class StreamSuperseded(Unsettled):
    pass


class LeaseLost(Unsettled):
    pass


class LandingFailed(Unsettled):
    pass


class LogUnsettled(LandingFailed):
    """The entry may still appear, so its files stay."""


class SourceQuarantined(GatewayError):
    """A cut of the source is committed and can't be applied to the database; others go on."""


class SourceBlocked(GatewayError):
    """Transient: a cut of the source is committed, and another transaction of the database keeps it from being applied.

    Others go on.
    """

    terminal = False


class NumbersSpent(StreamError):
    """A source's numbers have come to their end: nothing can be counted on from there."""


class TooManyStreams(StreamError):
    """Transient: others may end."""

    terminal = False


class TablesTooMany(StreamError):
    """An agent takes no such desired state; a former version's API has let somebody ask for it."""


class CutTooLarge(StreamError):
    pass


class CutStalled(StreamError):
    """An open cut gets neither rows nor its end."""

    terminal = False


class AgentNotReading(StreamError):
    """What the gateway says is not read."""

    terminal = False


class MessageStalled(StreamError):
    """The parts of a message do not come any more."""

    terminal = False


class ReportRefused(StreamError):
    """The database refuses what an agent said, and will whenever it comes."""


class ChunksLost(Unsettled):
    """A cut that named chunks of a dump was not committed."""


class RegistryAway(Unsettled):
    code = "REGISTRY_UNAVAILABLE"


class SpoolFailed(Unsettled):
    """The temporary folder takes nothing."""


class GatewayStopping(Unsettled):
    pass


class IdentityRefused(GatewayError):
    """Who opens a stream is not whom it says, or may not."""


class CertificateInvalid(IdentityRefused):
    """The CA has certified it, and it is no agent's."""


class CertificateExpired(IdentityRefused):
    """Of a connection that outlived it: the agent connects again with its new one."""

    terminal = False


class CertificateSuperseded(IdentityRefused):
    """The agent has enrolled another key since."""


class CertificateMissing(IdentityRefused):
    """A name that belongs to a key comes without it."""


class IdentityMismatch(IdentityRefused):
    """The header names somebody else than the certificate."""


class AgentUnknown(IdentityRefused):
    """The control plane has no such agent."""


class AgentRevoked(IdentityRefused):
    pass


class DuplicateAgent(IdentityRefused):
    """Another process with this identity is there and lives."""


class SourceNotAssigned(IdentityRefused):
    """The source is another agent's, or nobody's."""


class EnrolmentRefused(GatewayError):
    """An agent gets no certificate."""


class TokenRefused(EnrolmentRefused):
    """Unknown, spent, over, revoked, or for another agent."""


class AgentNameTaken(EnrolmentRefused):
    pass


class CertificateRequestInvalid(EnrolmentRefused):
    pass


class EnrolmentRequestInvalid(EnrolmentRefused):
    """What came on the port for enrolment is no request to enrol."""


class RenewalUnavailable(EnrolmentRefused):
    """This gateway has no CA, or the connection no certificate."""


class EnrolmentBusy(EnrolmentRefused):
    """Too many ask."""

    terminal = False
