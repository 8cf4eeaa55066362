"""The readers that a benchmark of PostgreSQL compares, each in a process of its own, measured by the kernel."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

from agent.sources.postgresql.positions import lsn_text
from tests.agent.postgresql.sources import entries, login
from tests.bench.postgresql.workload import DATABASE, PUBLICATION, Case, drop_slot, slot_of
from tests.bench.readers import CONNECTORX, Measure, go_program, installed, measured, whole_agent
from tests.postgres import SourceServer
from tests.stack import stack

Reader = Callable[[SourceServer, Case], Measure]

HERE = Path(__file__).parent
PSYCOPG2 = HERE / "psycopg2.txt"
PGLOGREPL = HERE / "pglogrepl"


def menura(server: SourceServer, case: Case) -> Measure:
    """The whole agent: read the slot, or dump the table; a real gateway beside it lands and commits."""
    is_dump = case.name == "dump"
    slot = "menura_bench" if is_dump else slot_of(server, case)
    source = {
        "kind": "postgresql",
        "client": entries(login(server, database=DATABASE)) | {"tls": {"mode": "disable"}},
        "slot": slot,
        "publication": PUBLICATION,
    }
    with tempfile.TemporaryDirectory() as folder, stack(Path(folder), sink=False, cut_interval_ms=500) as running:
        agent = running.agent_of("bench-agent", {"bench": source})
        start = "dump" if is_dump else "oldest"
        found = whole_agent(running, agent, case, "public", case.table, start)
    drop_slot(server, slot)
    return found


def menura_decode(server: SourceServer, case: Case) -> Measure:
    """The compiled core alone: receive, decode into Arrow columns, drop them."""
    return _of_slot("menura-decode", [sys.executable, "-m", "tests.bench.postgresql.decode"], server, case)


def pg_recvlogical(server: SourceServer, case: Case) -> Measure:
    """Copies the messages to nowhere, decodes nothing."""
    program = shutil.which("pg_recvlogical")
    assert program is not None  # else it is not among READERS
    slot = slot_of(server, case)
    end = int(str(server.run("SELECT pg_current_wal_insert_lsn() - '0/0'")[0][0]))
    command = [
        program, f"--slot={slot}", "--start", "--file=/dev/null", "--no-loop", f"--endpos={lsn_text(end)}",
        "--option=proto_version=1", f"--option=publication_names={PUBLICATION}",
        f"--host={server.host}", f"--port={server.port}", "--username=menura", f"--dbname={DATABASE}",
    ]  # fmt: skip
    environment = os.environ | {"PGPASSWORD": "menura-secret", "PGSSLMODE": "disable"}
    found = measured("pg_recvlogical", case, command, environment)
    drop_slot(server, slot)
    return found


def psycopg2(server: SourceServer, case: Case) -> Measure:
    """psycopg2's replication loop, each row as Python objects."""
    command = [sys.executable, "-m", "tests.bench.postgresql.psycopg2_rows"]
    return _of_slot("psycopg2", command, server, case, installed("psycopg2", PSYCOPG2))


def pglogrepl(server: SourceServer, case: Case) -> Measure:
    """Go's pglogrepl, each value as pgx's types."""
    return _of_slot("pglogrepl", [str(go_program(PGLOGREPL))], server, case)


def menura_select(server: SourceServer, case: Case) -> Measure:
    """One SELECT over one connection into Arrow columns, which are dropped: what connectorx does."""
    return _of_table("menura-select", [sys.executable, "-m", "tests.bench.postgresql.select"], server, case)


def menura_dump(server: SourceServer, case: Case) -> Measure:
    """The same, with each batch encoded as it travels."""
    command = [sys.executable, "-m", "tests.bench.postgresql.select", "--encode"]
    return _of_table("menura-dump", command, server, case)


def connectorx(server: SourceServer, case: Case) -> Measure:
    """connectorx: one SELECT over one connection into Arrow columns, by the binary protocol."""
    command = [sys.executable, "-m", "tests.bench.postgresql.connectorx_select"]
    return _of_table("connectorx", command, server, case, installed("connectorx", CONNECTORX))


def install_peers(readers: Collection[str]) -> None:
    """Before anything is measured: what can't be had is said at once."""
    if "connectorx" in readers:
        installed("connectorx", CONNECTORX)
    if "psycopg2" in readers:
        installed("psycopg2", PSYCOPG2)
    if "pglogrepl" in readers:
        go_program(PGLOGREPL)


def _of_slot(
    reader: str, command: list[str], server: SourceServer, case: Case, environment: dict[str, str] | None = None
) -> Measure:
    slot = slot_of(server, case)
    arguments = [server.host, str(server.port), slot, str(case.rows)]
    found = measured(reader, case, [*command, *arguments], environment)
    drop_slot(server, slot)
    return found


def _of_table(
    reader: str, command: list[str], server: SourceServer, case: Case, environment: dict[str, str] | None = None
) -> Measure:
    arguments = [server.host, str(server.port), case.table, str(case.rows)]
    return measured(reader, case, [*command, *arguments], environment)


def _has_pg_recvlogical() -> bool:
    """Debian's is a script that may lack its server's program."""
    program = shutil.which("pg_recvlogical")
    return (
        program is not None and not subprocess.run([program, "--version"], capture_output=True, check=False).returncode
    )


READERS: dict[str, Reader] = {"menura": menura, "menura-decode": menura_decode, "psycopg2": psycopg2}
if _has_pg_recvlogical():
    READERS |= {"pg_recvlogical": pg_recvlogical}
if shutil.which("go"):
    READERS |= {"pglogrepl": pglogrepl}
#: of the case `dump`
TABLE_READERS: dict[str, Reader] = {
    "menura": menura,
    "menura-select": menura_select,
    "menura-dump": menura_dump,
    "connectorx": connectorx,
}
