"""Who asks, and what that caller may do; certificates of agents."""

from controlplane_api.errors.base import ControlPlaneError, RequestError


class TokenUnknown(RequestError):
    """The tenant has no enrolment token of this name."""

    status = 404
    fix = "The list of tokens has all names."


class TokensTooMany(RequestError):
    """The tenant has as many unused enrolment tokens as it may."""

    status = 409
    fix = "Revoke those that nobody needs."


class CallerMissing(RequestError):
    """The request has neither a token nor a session."""

    status = 401
    fix = "Send Authorization: Bearer with a token of the API, or log in at /login."


class CallerUnknown(RequestError):
    """The token or the session is not good, or not good any more."""

    status = 401
    fix = "Use a token that is neither revoked nor over, or log in again."


class RoleMissing(RequestError):
    """The caller is known, and may not do this."""

    status = 403
    fix = "Use a token with another role; an administrator makes one."


class TenantUnknown(RequestError):
    """There is no tenant of this name, or the caller has no role in it: nobody is told which."""

    status = 404
    fix = "Check the spelling, or use a token of that tenant."


class AttemptsTooMany(RequestError):
    """From this address, or with this token's name, too many attempts came with a secret that is not good."""

    status = 429
    terminal = False
    fix = "Try again in a minute."


class ApiTokenUnknown(RequestError):
    """There is no API token of this name in the tenant, or in the fleet."""

    status = 404
    fix = "The list of API tokens has all names."


class ApiTokensTooMany(RequestError):
    """The tenant, or the fleet, has as many good API tokens as it may."""

    status = 409
    fix = "Revoke those that nobody needs."


class LoginRefused(RequestError):
    """The identity provider does not say that this person may come in."""

    status = 403
    fix = "Log in again, with an account that the provider's administrator has given a role."


class LoginProviderAway(RequestError):
    """The identity provider can't be reached, or says what can't be understood."""

    status = 503
    terminal = False
    fix = "Log in later, or with a token; the operator finds the reason in the API's log."


class CaMissing(RequestError):
    """No gateway has a CA, so nobody could enrol."""

    status = 409
    fix = "Start a gateway with a CA."


class CrossSiteRefused(RequestError):
    """The request may come from another site's page: its Host, Origin or Content-Type says so, or a session comes
    without what its page knows."""

    status = 403
    fix = "Use the API's own address, send JSON with Content-Type: application/json, and a token in place of a session."


class LoginUnusable(ControlPlaneError):
    """The settings of the identity provider."""

    exit_code = 29


class TokenFileUnusable(ControlPlaneError):
    """A file that should have a token of the API."""

    exit_code = 30


class CaUnusable(ControlPlaneError):
    """The CA's files can't be used, or are not those of the CA that agents know."""

    exit_code = 28
