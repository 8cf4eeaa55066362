"""Simulated agents: real gRPC streams over real TLS, without a database behind them.

Each has one source of its name, and four streams as an agent has them: configuration, heartbeats, catalog, changes. It
answers the catalog's question with its tables, or that none differs, and each desired state with an effective one. It
dials again with an agent's own pauses. All run on one event loop in the process of the bench.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

import grpc
from menura.message_parts import in_parts
from menura.protocol import PROTOCOL_VERSION
from menura.v1.catalog_pb2 import Cartography, ColumnCard, KeyCard, TableCard
from menura.v1.config_pb2 import (
    DesiredState,
    EffectiveState,
    Heartbeat,
    Hello,
    SourceHello,
    SourceStatus,
    TableName,
    TableState,
)
from menura.v1.stream_pb2 import Header, RequestType, StreamRequest, StreamResponse

from agent.identity import Credentials
from agent.runtime.backoff import Backoff
from agent.runtime.session import RECONNECT_FIRST_SECONDS, RECONNECT_MOST_SECONDS, STABLE_SECONDS
from agent.snapshot.cartography import Sent, Telling

DATABASE = "shop"
STREAMS = ("Control_Config", "Control_Heartbeat", "MySQLClient", "MySQLBinlog")
COLUMNS = 10
SLICE_SECONDS = 0.1


def table_cards(count: int) -> list[TableCard]:
    columns = [
        ColumnCard(name=f"column_{number}", column_type="varchar(100)", charset="utf8mb4") for number in range(COLUMNS)
    ]
    key = KeyCard(name="PRIMARY", unique=True, columns=["column_0"])
    return [
        TableCard(
            table=TableName(database=DATABASE, table=table_name(number)),
            engine="InnoDB",
            estimated_rows=number,
            size_bytes=number << 10,
            collation="utf8mb4_general_ci",
            columns=columns,
            keys=[key],
        )
        for number in range(count)
    ]


def table_name(number: int) -> str:
    return f"table_{number:06}"


@dataclass(frozen=True, slots=True)
class Answer:
    """A cartography as it travels, made once for all agents that have these tables: an agent's own parts of it."""

    payloads: tuple[bytes, ...]

    @classmethod
    def of(cls, tables: int) -> "Answer":
        head = Cartography(flavor="mysql", server_version="9.7.0")
        parts = Telling(head, table_cards(tables), Sent()).parts()
        return cls(tuple(StreamResponse(cartography=part).SerializeToString() for part in parts))


@dataclass(eq=False)
class SimulatedAgent:
    address: str
    tenant: str
    name: str
    identity: Credentials
    answer: Answer
    session: str = field(default_factory=lambda: str(uuid.uuid4()))
    #: streams on which the gateway has answered
    open: set[str] = field(default_factory=set)
    #: cartographies that were sent
    answered: int = 0
    #: by table: when the gateway asked for it, `time.monotonic`
    desired: dict[str, float] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    heartbeat_seconds: float = 1.0

    @property
    def is_back(self) -> bool:
        return len(self.open) == len(STREAMS)

    async def run(self) -> None:
        """Until cancelled."""
        found = self.identity
        credentials = grpc.ssl_channel_credentials(found.ca, found.key, found.certificate)
        options = (("grpc.ssl_target_name_override", found.server_name), ("grpc.use_local_subchannel_pool", 1))
        async with (
            grpc.aio.secure_channel(self.address, credentials, options=options) as channel,
            asyncio.TaskGroup() as streams,
        ):
            for request_type in STREAMS:
                streams.create_task(self._keep_open(channel, request_type))

    async def _keep_open(self, channel: grpc.aio.Channel, request_type: str) -> None:
        backoff = Backoff(RECONNECT_FIRST_SECONDS, RECONNECT_MOST_SECONDS, Random())
        while True:
            try:
                await self._serve(channel, request_type, backoff)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as failed:
                self.errors.append(str(failed)[:200])
            self.open.discard(request_type)
            await asyncio.sleep(backoff.next_seconds())

    async def _serve(self, channel: grpc.aio.Channel, request_type: str, backoff: Backoff) -> None:
        call = channel.stream_stream("/menura.v1.Gateway/Stream", None, StreamRequest.FromString)()
        stream = _Stream(call, self._header(request_type))
        await stream.send(
            StreamResponse(
                hello=Hello(
                    protocol=PROTOCOL_VERSION, version="bench", sources=[SourceHello(source=self.name, flavor="mysql")]
                )
            ).SerializeToString()
        )
        beats: asyncio.Task[None] | None = None
        began = time.monotonic()
        try:
            while (request := await call.read()) is not grpc.aio.EOF:
                payload = request.WhichOneof("payload")
                if payload == "error":
                    self.errors.append(request.error.code)
                    continue
                self.open.add(request_type)
                if time.monotonic() - began > STABLE_SECONDS:
                    backoff.succeeded()
                if payload == "hello_ack":
                    self.heartbeat_seconds = request.hello_ack.heartbeat_interval_ms / 1000
                    if request_type == "Control_Heartbeat":
                        beats = asyncio.create_task(self._beat(stream))
                elif payload == "heartbeat_ack":
                    self.heartbeat_seconds = request.heartbeat_ack.heartbeat_interval_ms / 1000
                elif payload == "cartography_request" and request.cartography_request.known:
                    await stream.send(self._unchanged(request.cartography_request.known))
                    self.answered += 1
                elif payload == "cartography_request":
                    of_source = StreamResponse(cartography=Cartography(source=self.name)).SerializeToString()
                    for part in self.answer.payloads:
                        await stream.send(part + of_source)
                    self.answered += 1
                elif payload == "desired_state":
                    await stream.send(self._effective(request.desired_state))
        finally:
            if beats is not None:
                beats.cancel()
            call.cancel()

    async def _beat(self, stream: "_Stream") -> None:
        message = StreamResponse(
            heartbeat=Heartbeat(
                resident_memory_bytes=64 << 20, cpu_us=1, sources=[SourceStatus(source=self.name, lag_us=0)]
            )
        ).SerializeToString()
        while True:
            await stream.send(message)
            await asyncio.sleep(self.heartbeat_seconds)

    def _effective(self, desired: DesiredState) -> bytes:
        now = time.monotonic()
        for table in desired.tables:
            self.desired.setdefault(table.table, now)
        states = [TableState(table=table, state=TableState.PENDING) for table in desired.tables]
        state = EffectiveState(source=self.name, generation=desired.generation, tables=states)
        return StreamResponse(effective_state=state).SerializeToString()

    def _unchanged(self, known: bytes) -> bytes:
        """No table differs."""
        same = Cartography(
            source=self.name, flavor="mysql", server_version="9.7.0", base=known, digest=known, last=True
        )
        return StreamResponse(cartography=same).SerializeToString()

    def _header(self, request_type: str) -> Header:
        return Header(
            tenant=self.tenant,
            agent=self.name,
            source="" if request_type.startswith("Control") else self.name,
            request_type=RequestType.Value(request_type),
            session=self.session,
        )


class _Stream:
    """One direction of a call: each message gets the header with its number."""

    def __init__(self, call: grpc.aio.StreamStreamCall, header: Header) -> None:
        self._call = call
        self._header = header
        self._turn = asyncio.Lock()

    async def send(self, payload: bytes) -> None:
        async with self._turn:
            self._header.sequence += 1
            # Of two serialized messages in a row a reader makes one.
            for part in in_parts(StreamResponse(header=self._header).SerializeToString() + payload):
                await self._call.write(part)


async def until(
    what: str, agents: Iterable[SimulatedAgent], is_so: Callable[[SimulatedAgent], bool], seconds: float
) -> float:
    """Seconds until all are so. Raises `TimeoutError`, which says how many are."""
    waiting, began = list(agents), time.monotonic()
    while waiting := [agent for agent in waiting if not is_so(agent)]:
        if time.monotonic() - began > seconds:
            told = {error for agent in waiting[:50] for error in agent.errors[-1:]}
            raise TimeoutError(f"{what}: {len(waiting)} are not after {seconds:.0f} s; they were told {told}")
        await asyncio.sleep(SLICE_SECONDS)
    return time.monotonic() - began
