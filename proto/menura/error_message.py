"""An error as it travels, from an agent to its gateway and back."""

from menura.errors import MenuraError
from menura.instants import now_us
from menura.v1.error_pb2 import Error


def as_message(error: MenuraError) -> Error:
    """The error's fields; `at_us` is now. A byte of a server's that is no text becomes '?'.

    >>> as_message(MenuraError("reading the log", "a statement of \\udcf8")).found
    'a statement of ?'
    """
    return Error(
        code=error.code,
        doing=_encodable(error.doing),
        found=_encodable(error.found),
        data=_encodable(error.data),
        remedy=_encodable(error.remedy),
        source=_encodable(error.source),
        database=_encodable(error.database),
        table=_encodable(error.table),
        position=_encodable(error.position),
        terminal=error.terminal,
        at_us=now_us(),
    )


def _encodable(text: str) -> str:
    """What was not decoded is kept as lone surrogates, which UTF-8 does not have."""
    return text.encode("utf-8", "replace").decode()
