"""A message that has come and waits for its agent's share is on disk meanwhile.

Comes in: one gRPC message, of at most `menura.message_parts.MAX_GRPC_BYTES`, that is within no budget yet. Goes out:
the same bytes, when there is room for them. A thousand streams that wait would have 256 MiB of memory otherwise. The
file is in the temporary folder and has no name: it ends with its stream, or with the process. Nothing is durable.
"""

import tempfile
from collections.abc import Callable, Coroutine
from typing import IO, Any

from gateway.errors import NOTHING_LOST, SpoolFailed
from gateway.loop_turns import Owner
from gateway.shares import Turns
from gateway.tasks import in_thread


class Unparsed:
    """Holds a message alone: whoever made this lets go of it, or it is in memory as before."""

    def __init__(self, message: bytes) -> None:
        self._message = message

    async def when(
        self, owner: Owner, is_free: bool, room: Callable[[], Coroutine[Any, Any, None]], writing: Turns
    ) -> bytes:
        """The message, when `room` has been waited for; no other task runs in between. It stays in memory where there
        `is_free` room now, and is written in a turn of `owner` else. Raises `SpoolFailed`."""
        message, self._message = self._message, b""
        if is_free:
            await room()
            return message
        try:
            with tempfile.TemporaryFile() as file:
                async with writing.of(owner):
                    await in_thread(_write, file, message)
                del message
                await room()
                file.seek(0)
                return file.read()
        except OSError as refused:
            raise SpoolFailed(
                "keeping an agent's message on disk while it waits for others",
                f"{tempfile.gettempdir()}: {refused.strerror}",
                data=NOTHING_LOST,
                remedy="Free space there, or start the gateway with another folder in TMPDIR",
            ) from refused


def _write(file: IO[bytes], message: bytes) -> None:
    file.write(message)
    file.flush()
