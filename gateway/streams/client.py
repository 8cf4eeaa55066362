"""A catalog stream: questions about what exists on a server, and dumps of its tables, side by side.

Comes in: an agent's messages, each handed to the one whom it concerns. What is recorded is the registry's, what is
landed the dumps'; the rest begins anew with the next stream.
"""

from menura.instants import now_us
from menura.v1.error_pb2 import Error

from gateway.landing_parts import LandingParts
from gateway.presence import AgentSession
from gateway.quotas import ERROR_ROWS
from gateway.registry import SourceKey
from gateway.stream import AgentStream
from gateway.streams.cartography import Cartographer
from gateway.streams.dumps import Dumps
from gateway.tasks import run_until_first
from gateway.wire.translation import problem_from


class Client:
    def __init__(self, stream: AgentStream, parts: LandingParts, agent: AgentSession, key: SourceKey) -> None:
        self._stream = stream
        self._parts = parts
        self._key = key
        self._agent = agent
        self._cartographer = Cartographer(stream, parts, agent, key)
        self._dumps = Dumps(stream, key, agent.session, parts)

    async def serve(self) -> None:
        await run_until_first(self._receive(), self._cartographer.ask(), self._dumps.serve())

    async def _receive(self) -> None:
        while await self._receive_next():
            continue

    async def _receive_next(self) -> bool:
        """False when the agent has ended the stream."""
        received = await self._stream.receive()
        if received is None:
            return False
        message = received.message
        payload = message.WhichOneof("payload")
        if payload == "cartography":
            await self._cartographer.take(message.cartography, now_us())
        elif payload == "error":
            self._stream.quota.rows.owe(ERROR_ROWS)
            await self._record_problem(message.error)
        else:
            await self._dumps.receive(received)
        return True

    async def _record_problem(self, error: Error) -> None:
        at_us = now_us()

        def record() -> None:
            problem = problem_from(error, at_us)
            self._parts.registry.record_source_problem(self._key, problem, problem.at_us)

        await self._parts.reports.tell(self._agent.name, record)
