"""Agents, cartographies and cut log entries for the control plane's tests."""

import time
from collections.abc import Sequence

from menura.landing import (
    LandedAhead,
    LandedChunk,
    LandedCut,
    LandedEvent,
    LandedFence,
    LandedFile,
    LandedPosition,
    LandedStart,
    LandedStop,
    LogEntry,
)

from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import (
    AgentSeen,
    CartographyEnd,
    ColumnSeen,
    HeartbeatSeen,
    KeySeen,
    Registry,
    SourceHealth,
    SourceKey,
    SourceSeen,
    TableSeen,
    table_hash,
)

T0 = 1_700_000_000_000_000
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
KEY = SourceKey("acme", "shop")
LANDING = "file:///landing"


def fresh_us() -> int:
    """When something was reported whose figures stay fresh, however long the test takes."""
    return time.time_ns() // 1000 + 3_600_000_000


def at(number: int) -> LandedPosition:
    """The place after the source's `number`th transaction."""
    return LandedPosition("mysql", f"{UUID}:1-{number}", str(100 * number))


def agent_seen(tenant: str = "acme", sources: Sequence[str] = ("shop",), session: str = "run-1") -> AgentSeen:
    seen = tuple(SourceSeen(name, "mysql", "9.7.0", "db1:3306", "00ff") for name in sources)
    return AgentSeen(tenant, "agent-1", session, "0.1.0", "db1.example", seen, T0)


def table_seen(table: str, database: str = "shop", *, denied: bool = False, keyed: bool = True) -> TableSeen:
    return TableSeen(
        database,
        table,
        "InnoDB",
        "utf8mb4_0900_ai_ci",
        1_000,
        65_536,
        (
            ColumnSeen("id", "bigint unsigned", nullable=False),
            ColumnSeen("note", "varchar(200)", nullable=True, charset="utf8mb4"),
        ),
        (KeySeen("PRIMARY" if keyed else "by_note", unique=True, columns=("id" if keyed else "note",)),),
        denied,
    )


def record_shop(registry: SqlRegistry, *tables: str, key: SourceKey = KEY) -> None:
    """An agent with one source that has these tables; it is connected."""
    registry.record_agent(agent_seen(key.tenant, [key.source]))
    record_heartbeat(registry, key.tenant, "agent-1", 1, 1, [], fresh_us())
    names = tables or ("orders", "items", "notes")
    record_cartography(registry, key, "mysql", "9.7.0", UUID, [table_seen(name) for name in names], T0)


def record_heartbeat(
    registry: Registry,
    tenant: str,
    agent: str,
    resident_memory_bytes: int,
    cpu_us: int,
    sources: Sequence[SourceHealth],
    at_us: int,
) -> None:
    registry.record_heartbeats([HeartbeatSeen(tenant, agent, resident_memory_bytes, cpu_us, sources, at_us)])


def record_cartography(
    registry: Registry,
    key: SourceKey,
    flavor: str,
    version: str,
    identity: str,
    tables: Sequence[TableSeen],
    at_us: int,
) -> None:
    """All tables that there are, as one answer of an agent."""
    assert registry.begin_cartography(key, b"")
    registry.record_tables(key, tables, ())
    names = {table_hash(table.database, table.table) for table in tables}
    registry.end_cartography(key, CartographyEnd(flavor, version, identity, b"whole", names), at_us)


def health(source: str = "shop", rows: int = 1_000, lag_us: int | None = 0) -> SourceHealth:
    return SourceHealth(source, f"{UUID}:1-70", f"{UUID}:1-77", lag_us, rows, 77, rows * 100, rows * 20, 0)


def file(table: str, rows: int = 10, database: str = "shop") -> LandedFile:
    path = f"data/acme/shop/{database}/{table}/1.parquet"
    return LandedFile(database, table, "00ff00ff00ff00ff", path, rows, rows * 100, 1, rows)


def started(table: str, number: int, missing: str = "", database: str = "shop") -> LandedStart:
    return LandedStart(database, table, at(number), missing)


def stopped(table: str, number: int, database: str = "shop") -> LandedStop:
    return LandedStop(database, table, at(number), "EVENT_UNKNOWN", "An event that can't be read.")


def event(table: str, gsn: int, kind: str = "TRUNCATED", database: str = "shop") -> LandedEvent:
    return LandedEvent(database, table, kind, gsn, gsn, T0 + gsn, f"{UUID}:{gsn}", f"{kind} {table}", kind != "ALTERED")


def unlogged(
    table: str, gsn: int, why: str = "rows were converted", *, kind: str = "ALTERED", most: int = 3, reread: bool = True
) -> LandedEvent:
    return LandedEvent(
        "shop", table, kind, gsn, gsn, T0 + gsn, f"{UUID}:{gsn}", f"{kind} {table}", kind == "TRUNCATED",
        unlogged_changes=why, reread=reread, most_rereads_per_hour=most if reread else 0,
    )  # fmt: skip


def dump_event(table: str, gsn: int, kind: str, dump: str, before: int = 0) -> LandedEvent:
    """DUMP_STARTED, or DUMPED that ends the dump which `before` began."""
    return LandedEvent(
        "shop", table, kind, gsn, 0, T0 + gsn, f"{UUID}:{gsn}", "", kind == "DUMPED" and not before,
        dump=dump, removes_rows_before_gsn=before,
    )  # fmt: skip


def chunk(
    table: str, dump: str, number: int, lower: str, upper: str, *, last: bool = False, of_range: int = 0, rows: int = 10
) -> LandedChunk:
    return LandedChunk(
        "shop", table, dump, number, 5, of_range, lower, upper, last, rows, rows * 50, T0 + number * 1_000_000,
        900_000, f"{UUID}:1-5",
    )  # fmt: skip


def cut(
    number: int,
    *files: LandedFile,
    generation: int = 1,
    key: SourceKey = KEY,
    epoch: int = 1,
    start: Sequence[LandedStart] = (),
    stop: Sequence[LandedStop] = (),
    ahead: Sequence[LandedAhead] = (),
    events: Sequence[LandedEvent] = (),
    chunks: Sequence[LandedChunk] = (),
) -> LandedCut:
    """Cut `number`, which ends after the source's transaction of that number."""
    return LandedCut(
        key.tenant, key.source, epoch, number, generation, "mysql", at(number), number * 10, number, 1,
        T0 + number * 1_000_000, T0 + number * 1_000_000, tuple(ahead), tuple(start), tuple(stop), files,
        tuple(events), tuple(chunks),
    )  # fmt: skip


def fence(epoch: int, key: SourceKey = KEY) -> LandedFence:
    return LandedFence(key.tenant, key.source, epoch)


def entry(number: int, *cuts: LandedCut, fences: Sequence[LandedFence] = ()) -> LogEntry:
    return LogEntry(number, "gw-1", T0 + number * 1_000_000 + 500_000, cuts, tuple(fences))
