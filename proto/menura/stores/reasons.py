"""Why a store failed, in one word: the store's own, which stands in its answer, or the answer's status.

S3, Google and Azure answer with an XML document; the clients here, obstore and delta-rs, show it in their errors' text.
Of that text nothing else is taken, since it may hold addresses and names.
"""

import re
from errno import errorcode

from menura.stores.store import StoreFailed

_WORD = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
#: no answer at all
UNREACHABLE = "UNREACHABLE"


def word_of(failure: BaseException) -> str:
    """The store's own word; '' where its answer has none."""
    found = _WORD.search(str(failure))
    return found[1] if found else ""


def reason_of(failure: BaseException) -> str:
    """The word for it, of a store or of the system.

    >>> reason_of(OSError("status code: 403: <Error><Code>AccessDenied</Code>")), reason_of(OSError(28, "full"))
    ('AccessDenied', 'ENOSPC')
    """
    if isinstance(failure, StoreFailed):
        return failure.reason
    if isinstance(failure, OSError) and failure.errno is not None:
        return errorcode.get(failure.errno, UNREACHABLE)
    status = _STATUS.search(str(failure))
    return word_of(failure) or (f"HTTP_{status[1]}" if status else UNREACHABLE)
