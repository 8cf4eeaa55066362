"""Requests that the API can't carry out, whatever they are about."""

from controlplane_api.errors.base import RequestError


class RequestInvalid(RequestError):
    """The request is not one that the document describes."""

    status = 422
    exit_code = 2
    fix = "`errors` says what is wrong, and where: a pointer into the body, or a parameter."


class PathUnknown(RequestError):
    """No resource has this path."""

    status = 404
    fix = "The OpenAPI document has all paths."


class MethodUnknown(RequestError):
    """The resource does not have this method."""

    status = 405
    fix = "The header Allow has those that it has."


class ProblemUnknown(RequestError):
    """No type of problem has this name."""

    status = 404
    fix = "The list of problems has all types."


class PreconditionFailed(RequestError):
    """What is there is no longer what the caller has seen: its ETag is another one than If-Match says."""

    status = 412
    fix = "Read it again, and decide anew."


class PreconditionMissing(RequestError):
    """What the request changes is dangerous, and the request does not say which state of it its caller has seen."""

    status = 428
    fix = "Read it, and send its ETag as If-Match; or plan with dry_run=true."


class IdempotencyKeyReused(RequestError):
    """Another request came with this Idempotency-Key before."""

    status = 422
    fix = "Make a new key for each request, and send it again only with the same one."


class AnswerNotKept(RequestError):
    """The request with this Idempotency-Key was carried out before, and its answer was too large to be kept."""

    status = 409
    fix = "Read what it has changed; nothing was done a second time."


class OperationUnknown(RequestError):
    """The source has no operation of this name; the oldest ones are forgotten."""

    status = 404
    fix = "The list of the source's operations has all names."


class StreamsTooMany(RequestError):
    """As many streams of events are open at this API as it holds."""

    status = 429
    terminal = False
    fix = "Close one, or open it later; the table's own page has its last events too."


class BodiesTooMany(RequestError):
    """Of the caller, its tenant or all, as many bodies of requests are on their way or in work as this API holds."""

    status = 429
    terminal = False
    retry_after_seconds = 1
    fix = "Repeat it after the time that Retry-After says; send requests one after the other, and each without a pause."
