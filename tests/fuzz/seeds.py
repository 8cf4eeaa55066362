"""The logs that are mutated: one small transaction a seed, from every server, type, setting and kind of event.

Kept in ``seeds/PLATFORM.zst``: streams of packets without checksums, each behind its length in four bytes. Made anew by
`python -m tests.fuzz seeds`, from the cases of `tests.conformance`.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from backports import zstd

from agent.sources.mysql.log import constants as binlog
from tests.agent.native.capture import dump
from tests.agent.native.mutation import packets, payloads, without_checksums
from tests.conformance import cases, flows
from tests.fuzz.mutate import BODY, Payloads
from tests.golden import golden, names
from tests.servers import Server, server

FOLDER = Path(__file__).parent / "seeds"
MOST_SEED_BYTES = 8192
_BEGINS = (binlog.GTID_LOG_EVENT, binlog.ANONYMOUS_GTID_LOG_EVENT, binlog.GTID_TAGGED_LOG_EVENT, binlog.GTID_EVENT)

#: (MariaDB's, transaction)
Seed = tuple[bool, Payloads]


def load() -> list[Seed]:
    """In an order that is the same in every run."""
    seeds: list[Seed] = []
    for path in sorted(FOLDER.glob("*.zst")):
        mariadb = path.name.startswith("mariadb")
        data = zstd.decompress(path.read_bytes())
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "little")
            seeds.append((mariadb, list(payloads(data[at + 4 : at + 4 + size]))))
            at += 4 + size
    for name in names():
        kept = golden(name)
        seeds += [(kept.mariadb, unit) for unit in _transactions(without_checksums(kept.data))]
    return seeds


def make() -> None:
    for platform in cases.PLATFORMS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            with server(
                platform.flavor, path / "server", release=platform.version, max_allowed_packet="64M", local_infile="1"
            ) as running:
                units = list(_logged(running, platform))
        streams = [b"".join(map(packets, unit)) for unit in units]
        data = b"".join(len(stream).to_bytes(4, "little") + stream for stream in streams)
        name = platform.name.lower().replace(" ", "-")
        (FOLDER / f"{name}.zst").write_bytes(zstd.compress(data, 19))
        print(f"{platform.name}: {len(units)} transactions, {len(data)} bytes")


def _logged(running: Server, platform: cases.Platform) -> Iterator[Payloads]:
    """Transactions of every setting and flow; equal ones once, and CREATE TABLE of one setting only."""
    known: set[bytes] = set()
    for number, data in enumerate((*_settings(running, platform), _flows(running, platform))):
        for unit in _transactions(without_checksums(data)):
            is_definition = len(unit) == 2 and unit[1][5] == binlog.QUERY_EVENT
            if is_definition and 0 < number < len(cases.settings_of(platform)):
                continue
            # what only numbers, ids and times tell apart is one seed
            shape = b"".join(payload[5:6] + payload[BODY + 8 :] for payload in unit if payload[5] not in _BEGINS)
            if shape not in known:
                known.add(shape)
                yield unit


def _settings(running: Server, platform: cases.Platform) -> Iterator[bytes]:
    for setting in cases.settings_of(platform):
        running.run("DROP DATABASE IF EXISTS t", "CREATE DATABASE t CHARACTER SET utf8mb4")
        running.run(*setting.on, "FLUSH BINARY LOGS")
        file = str(running.run("SHOW BINARY LOGS")[-1][0])
        statements = [*cases.SESSION, *setting.session]
        small = [(f"t{n}", _small(type_)) for n, type_ in enumerate(cases.types_of(platform))]
        for table, type_ in small:
            statements += [cases.table_of(table, type_), *cases.rows_of(table, type_)]
        running.run(*statements, database="t")
        yield dump(running, file)
        if setting.off:
            running.run(*setting.off)


def _flows(running: Server, platform: cases.Platform) -> bytes:
    running.run("DROP DATABASE IF EXISTS t", "CREATE DATABASE t CHARACTER SET utf8mb4", "FLUSH BINARY LOGS")
    file = str(running.run("SHOW BINARY LOGS")[-1][0])
    assert running.folder is not None
    parts = flows.parts(running.folder)
    data = b""
    for number, flow in enumerate(flows.flows_of(platform)):
        if "MiB" in flow.name or not flow.is_sql:
            continue
        table = f"f{number}"
        running.run(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, note VARCHAR(40))",
            *(statement.format(t=table, **parts) for statement in flow.statements),
            database="t",
        )
    for name, *_ in running.run("SHOW BINARY LOGS"):
        if str(name) >= file:
            data += dump(running, str(name))
    return data


def _small(type_: cases.Type) -> cases.Type:
    values = tuple(value for value in type_.values if "REPEAT" not in value or type_.name.endswith("compressed"))
    return cases.Type(type_.name, type_.definition, values, type_.platforms)


def _transactions(data: bytes) -> Iterator[Payloads]:
    """The log's transactions with rows, DDL and the rest of a file's events, without what is too large."""
    unit: Payloads = []
    for payload in payloads(data):
        if payload[:1] != b"\0" or payload[5] in (binlog.FORMAT_DESCRIPTION_EVENT, binlog.ROTATE_EVENT):
            continue
        if payload[5] in _BEGINS:
            yield from _sized(unit)
            unit = []
        unit.append(payload)
    yield from _sized(unit)


def _sized(unit: Payloads) -> Iterator[Payloads]:
    if unit and sum(map(len, unit)) <= MOST_SEED_BYTES:
        yield unit
