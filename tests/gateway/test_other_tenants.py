"""An agent of one tenant says all that the protocol has, of another tenant's sources and dumps: nothing moves there."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from menura.v1.catalog_pb2 import Cartography, TableCard
from menura.v1.config_pb2 import (
    CertificateRequest,
    EffectiveSource,
    EffectiveSources,
    EffectiveState,
    EffectiveVersion,
    Heartbeat,
    PackageRequest,
    SourceHello,
    SourceStatus,
    TableName,
    TableState,
)
from menura.v1.error_pb2 import Error
from menura.v1.snapshot_pb2 import ChunkDropped, DumpFailed, DumpStatus
from menura.v1.stream_pb2 import StreamResponse
from sqlalchemy import Row, select

from controlplane_api.database import Database, open_database
from controlplane_api.models import Base, Source, SourceTable, Tenant
from gateway.registry import SourceKey
from tests.gateway.identities import Installation, identified_gateway
from tests.gateway.scripted_agent import (
    ScriptedAgent,
    change_batch,
    chunk_end,
    chunk_ref,
    commit_cut,
    cut_end,
    dump_plan,
    rows_batch,
    snapshot_batch,
    snapshot_rows,
)
from tests.gateway.sql_registry import want, want_dump

VICTIM = SourceKey("globex", "crm")
ORDERS = TableName(database="shop", table="orders")
ROLES = {"Control_Config": "", "Control_Heartbeat": "", "MySQLClient": "own", "MySQLBinlog": "own"}
#: what a stream of each role begins with, so that the gateway is ready for what comes
READY = {
    "Control_Config": "hello_ack",
    "Control_Heartbeat": "hello_ack",
    "MySQLClient": "desired_dumps",
    "MySQLBinlog": "replicate",
}


def said_of(source: str, dump: str, run: Any) -> dict[str, list[dict[str, Any]]]:
    """By role: every payload that an agent may send, of this source and this dump."""
    error = {"error": Error(code="X", doing="reading", found="y", terminal=True, source=source)}
    table = TableState(table=ORDERS)
    return {
        "Control_Config": [
            {"effective_state": EffectiveState(source=source, generation=9, tables=[table], error=error["error"])},
            {
                "effective_sources": EffectiveSources(
                    sources=[EffectiveSource(source=source, error=error["error"])],
                    running=[SourceHello(source=source, flavor="mysql")],
                )
            },
            {
                "effective_version": EffectiveVersion(
                    generation=9, version="0", state=EffectiveVersion.ROLLED_BACK, error=error["error"]
                )
            },
            {"package_request": PackageRequest(sha256="0" * 64, offset=0)},
            {"certificate_request": CertificateRequest(request=b"\x30\x00")},
            error,
        ],
        "Control_Heartbeat": [{"heartbeat": Heartbeat(sources=[SourceStatus(source=source)])}, error],
        "MySQLClient": [
            {"cartography": Cartography(source=source, tables=[TableCard(table=ORDERS)], last=True, digest=b"d")},
            {"dump_plan": dump_plan(dump, "7")},
            {"snapshot_batch": snapshot_batch(dump, 1, snapshot_rows([1]))},
            {"chunk_end": chunk_end(dump, 1, "", "", 1)},
            {"chunk_dropped": ChunkDropped(dump=dump, chunk=1)},
            {"dump_status": DumpStatus(dump=dump, state=DumpStatus.PAUSED)},
            {"dump_failed": DumpFailed(dump=dump, error=error["error"])},
            error,
        ],
        "MySQLBinlog": [
            {"change_batch": change_batch(run, 1, "orders", rows_batch([1]))},
            {"cut_end": cut_end(run, 1, 1, chunks=[chunk_ref(dump, 1, 1)])},
            error,
        ],
    }


def rows_of(database: Database, tenant: str) -> dict[str, list[Row[Any]]]:
    """All that the database has of a tenant."""
    with database.read() as connection:
        owner = connection.execute(select(Tenant.id).where(Tenant.name == tenant)).scalar_one()
        sources = list(connection.execute(select(Source.id).where(Source.tenant_id == owner)).scalars())
        tables = list(connection.execute(select(SourceTable.id).where(SourceTable.source_id.in_(sources))).scalars())
        ids = {"tenant_id": [owner], "source_id": sources, "table_id": tables}
        return {
            f"{table.name}.{name}": list(connection.execute(select(table).where(table.c[name].in_(found))))
            for table in Base.metadata.sorted_tables
            for name, found in ids.items()
            if name in table.c
        }


async def say(agent: ScriptedAgent, kind: str, payload: dict[str, Any]) -> None:
    """On a stream of its own, until the gateway has done with it."""
    stream = await agent.open(kind, ROLES[kind])
    await stream.expect(READY[kind])
    await stream.send(**payload)
    await stream.call.done_writing()
    with suppress(grpc.RpcError):  # what is refused ends its stream
        while await stream.call.read() is not grpc.aio.EOF:
            continue


def test_agent_when_it_says_everything_of_another_tenants_source_then_no_row_of_that_tenant_moves(
    tmp_path: Path,
) -> None:
    database = open_database(f"sqlite:///{tmp_path}/control.db")

    async def scenario(here: Installation) -> None:
        shown, honest_shown = await here.enrol("db-1", "own"), await here.enrol("db-1", "crm", tenant="globex")
        want(database, SourceKey("acme", "own"), "mine")
        want(database, VICTIM, "orders")
        dump = want_dump(database, VICTIM, "orders")
        async with (
            here.dialled(shown, "acme", "db-1", "own") as hostile,
            here.dialled(honest_shown, "globex", "db-1", "crm") as honest,
        ):
            await (await honest.open("Control_Config")).expect("desired_state")
            stream, run = await honest.open_binlog("crm")
            await commit_cut(stream, run, 1, [1])
            control = await hostile.open("Control_Config")
            await control.expect("hello_ack")
            before = rows_of(database, "globex")
            said = said_of("crm", dump, run)
            names = {name for payloads in said.values() for payload in payloads for name in payload}
            everything = {field.name for field in StreamResponse.DESCRIPTOR.oneofs_by_name["payload"].fields}
            assert names == everything - {"hello", "part"}
            for kind, payloads in said.items():
                for payload in payloads:
                    await asyncio.wait_for(say(hostile, kind, payload), 300)
            for kind in ("MySQLClient", "MySQLBinlog"):
                assert (await (await hostile.open(kind, "crm")).expect_error()).code == "SOURCE_NOT_ASSIGNED"
            assert rows_of(database, "globex") == before
            assert any(before.values())
            await commit_cut(stream, run, 2, [2])

    async def main() -> None:
        async with identified_gateway(tmp_path, database) as here:
            await scenario(here)

    asyncio.run(main())
    database.close()
