# ruff: noqa: E501  (a table: one column a line)
"""Values that hypothesis makes up, of every type, through real servers: the decoder, SELECT and mysql-replication agree.

An example is one INSERT of many rows. The oracle reads a table of the types that it reads rightly; it returns wrong
values for others (an empty SET, an empty BLOB, zero dates, BINARY's trailing zeros).
"""

import datetime
import json
import struct
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import WriteRowsEvent

from agent.sources.mysql.schema.table_planner import definition_of
from tests.agent.native.capture import decode_all, definitions, dump
from tests.agent.native.selection import assert_select_gives_the_same
from tests.compare import compare, read_source
from tests.conformance.cases import SESSION
from tests.servers import Server

ROWS = 5


@dataclass(frozen=True)
class Kind:
    """A column's definition, and what makes its values: SQL literals."""

    definition: str
    values: st.SearchStrategy[str]
    #: of the servers that have it, and its version where others of that flavor lack it
    flavor: str = ""
    #: mysql-replication reads it rightly
    agreed: bool = False


def _integers(low: int, high: int) -> st.SearchStrategy[str]:
    edges = st.sampled_from([low, low + 1, -1 if low else 0, 0, 1, high - 1, high])
    return (edges | st.integers(low, high)).map(str)


def _decimals(precision: int, scale: int, *, signed: bool = True) -> st.SearchStrategy[str]:
    most = 10**precision - 1
    numbers = _integers(-most if signed else 0, most)
    return numbers.map(lambda number: f"{number}e-{scale}" if scale else number).map(_plain)


def _plain(number: str) -> str:
    digits, _, exponent = number.partition("e-")
    if not exponent:
        return digits
    sign, digits = ("-", digits[1:]) if digits.startswith("-") else ("", digits)
    digits = digits.zfill(int(exponent) + 1)
    return f"{sign}{digits[: -int(exponent)]}.{digits[-int(exponent) :]}"


def _text(alphabet: st.SearchStrategy[str], most: int) -> st.SearchStrategy[str]:
    words = st.text(alphabet, max_size=most)
    return words.map(lambda text: f"CONVERT(X'{text.encode().hex()}' USING utf8mb4)")


def _characters(codec: str) -> st.SearchStrategy[str]:
    return st.characters(codec=codec, exclude_categories=["Cs"])


def _bytes(most: int) -> st.SearchStrategy[str]:
    return st.binary(max_size=most).map(lambda data: f"X'{data.hex()}'")


def _dates() -> st.SearchStrategy[str]:
    """Real ones, and with zero parts."""
    parts = st.tuples(st.sampled_from([0, 1, 1000, 1970, 2024, 9999]), st.integers(0, 12), st.integers(0, 31))
    return (st.dates().map(str) | parts.map(lambda date: f"{date[0]:04}-{date[1]:02}-{date[2]:02}")).map(repr)


def _times(digits: int) -> st.SearchStrategy[str]:
    most = (838 * 3600 + 59 * 60 + 59) * 10**digits
    return (st.sampled_from([-most, -1, 0, 1, most]) | st.integers(-most, most)).map(
        lambda units: repr(_time_text(units, digits))
    )


def _time_text(units: int, digits: int) -> str:
    seconds, fraction = divmod(abs(units), 10**digits)
    text = f"{'-' if units < 0 else ''}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:0{digits}}" if digits else text


def _datetimes(digits: int, *, first: int = 1000, last: int = 9999) -> st.SearchStrategy[str]:
    moments = st.datetimes(datetime.datetime(first, 1, 2), datetime.datetime(last, 1, 1))  # noqa: DTZ001
    return moments.map(lambda moment: repr(str(moment.replace(microsecond=_cut(moment.microsecond, digits)))))


def _cut(micros: int, digits: int) -> int:
    return micros - micros % 10 ** (6 - digits)


def _floats(width: int, most: float | None = None, *, subnormal: bool = True) -> st.SearchStrategy[str]:
    def literal(number: float) -> str:
        return repr(struct.unpack("<f", struct.pack("<f", number))[0]) if width == 32 else repr(number)

    least = None if most is None else -most
    floats = st.floats(least, most, width=width, allow_nan=False, allow_infinity=False, allow_subnormal=subnormal)
    return floats.map(literal)


def _json() -> st.SearchStrategy[str]:
    texts = st.text(_characters("utf-8"), max_size=20)
    leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | texts
    leaves |= st.floats(allow_nan=False, allow_infinity=False)
    trees = st.recursive(leaves, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5))
    return trees.map(lambda tree: f"CONVERT(X'{json.dumps(tree).encode().hex()}' USING utf8mb4)")


def _shapes() -> dict[str, st.SearchStrategy[str]]:
    """The text of geometries by the type of their column, with any coordinates."""
    points = st.tuples(_floats(64), _floats(64)).map(" ".join)
    lines = st.lists(points, min_size=2, max_size=6, unique=True).map(",".join)
    corners = st.lists(points, min_size=3, max_size=6, unique=True)
    rings = corners.map(lambda ring: ",".join([*ring, ring[0]]))
    collections = lines.map("GEOMETRYCOLLECTION(LINESTRING({0}),MULTIPOINT({0}))".format)
    return {
        "POINT": points.map("POINT({})".format),
        "LINESTRING": lines.map("LINESTRING({})".format),
        "POLYGON": rings.map("POLYGON(({}))".format),
        "MULTIPOINT": lines.map("MULTIPOINT({})".format),
        "MULTILINESTRING": lines.map("MULTILINESTRING(({0}),({0}))".format),
        "MULTIPOLYGON": rings.map("MULTIPOLYGON((({0})),(({0})))".format),
        "GEOMETRYCOLLECTION": collections,
    }


def _geometry(shapes: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """With some SRIDs."""
    return st.tuples(shapes, st.sampled_from([0, 3857])).map(lambda made: f"ST_GeomFromText('{made[0]}', {made[1]})")


def _vectors(numbers: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Of three numbers, as text."""
    return st.lists(numbers, min_size=3, max_size=3).map(lambda parts: f"'[{','.join(parts)}]'")


def _subsets(labels: list[str]) -> st.SearchStrategy[str]:
    return st.sets(st.sampled_from(labels)).map(lambda chosen: repr(",".join(sorted(chosen, key=labels.index))))


_UTF8 = _characters("utf-8")
KINDS = (
    Kind("TINYINT", _integers(-(2**7), 2**7 - 1), agreed=True),
    Kind("TINYINT UNSIGNED", _integers(0, 2**8 - 1), agreed=True),
    Kind("SMALLINT", _integers(-(2**15), 2**15 - 1), agreed=True),
    Kind("SMALLINT UNSIGNED", _integers(0, 2**16 - 1), agreed=True),
    Kind("MEDIUMINT", _integers(-(2**23), 2**23 - 1), agreed=True),
    Kind("MEDIUMINT UNSIGNED", _integers(0, 2**24 - 1), agreed=True),
    Kind("INT", _integers(-(2**31), 2**31 - 1), agreed=True),
    Kind("INT UNSIGNED", _integers(0, 2**32 - 1), agreed=True),
    Kind("BIGINT", _integers(-(2**63), 2**63 - 1), agreed=True),
    Kind("BIGINT UNSIGNED", _integers(0, 2**64 - 1), agreed=True),
    *(Kind(f"DECIMAL({p},{s})", _decimals(p, s), agreed=p < 39) for p, s in ((1, 0), (9, 9), (10, 2), (38, 30), (65, 30))),
    Kind("DECIMAL(20,5) UNSIGNED", _decimals(20, 5, signed=False), agreed=True),
    Kind("FLOAT", _floats(32)),
    Kind("DOUBLE", _floats(64), agreed=True),
    Kind("CHAR(20) CHARACTER SET utf8mb4", _text(_UTF8, 20)),
    Kind("VARCHAR(60) CHARACTER SET utf8mb4", _text(_UTF8, 60), agreed=True),
    Kind("VARCHAR(60) CHARACTER SET utf16", _text(_UTF8, 60)),
    Kind("VARCHAR(60) CHARACTER SET latin2", _text(_characters("iso8859-2"), 60)),
    Kind("VARCHAR(60) CHARACTER SET cp1251", _text(_characters("cp1251"), 60)),
    Kind("TINYTEXT CHARACTER SET utf8mb4", _text(_UTF8, 63)),
    Kind("MEDIUMTEXT CHARACTER SET utf16", _text(_UTF8, 300)),
    Kind("TEXT CHARACTER SET ascii", _text(_characters("ascii"), 300), agreed=True),
    Kind("BINARY(9)", _bytes(9)),
    Kind("VARBINARY(300)", _bytes(300)),
    Kind("TINYBLOB", _bytes(255)),
    Kind("MEDIUMBLOB", _bytes(600)),
    Kind("LONGBLOB", _bytes(600)),
    Kind("LONGTEXT CHARACTER SET utf8mb4", _text(_UTF8, 300)),
    Kind("BLOB", st.binary(min_size=1, max_size=300).map(lambda data: f"X'{data.hex()}'"), agreed=True),
    Kind("DATE", _dates()),
    *(Kind(f"TIME({digits})", _times(digits)) for digits in (0, 3, 6)),
    *(Kind(f"DATETIME({digits})", _datetimes(digits), agreed=digits in (0, 6)) for digits in (0, 1, 4, 6)),
    Kind("TIMESTAMP(5)", _datetimes(5, first=1971, last=2037)),
    Kind("YEAR", st.sampled_from(["0", "1901", "2155"]) | st.integers(1901, 2155).map(str)),
    Kind("ENUM('a','b','ünï') CHARACTER SET utf8mb4", st.sampled_from(["'a'", "'b'", "'ünï'"]), agreed=True),
    Kind("ENUM('a','b') CHARACTER SET utf8mb4", st.sampled_from(["0", "'a'", "''", "2"])),  # 0: the error value, ''
    Kind("SET('p','q','ž') CHARACTER SET latin2", _subsets(["p", "q", "ž"])),
    *(Kind(f"BIT({bits})", _integers(0, 2**bits - 1)) for bits in (1, 9, 63, 64)),
    Kind("JSON", _json()),
    Kind("GEOMETRY", _geometry(st.one_of(*_shapes().values()))),
    *(Kind(column, _geometry(shapes)) for column, shapes in _shapes().items()),
    # MySQL refuses the text of a subnormal number there
    Kind("VECTOR(3)", _vectors(_floats(32, subnormal=False)).map("STRING_TO_VECTOR({})".format), "mysql"),
    Kind("INET6", st.ip_addresses(v=6).map(lambda address: repr(str(address))), "mariadb"),
    Kind("INET4", st.ip_addresses(v=4).map(lambda address: repr(str(address))), "mariadb"),
    Kind("UUID", st.uuids().map(lambda uuid: repr(str(uuid))), "mariadb"),
    Kind("VARCHAR(300) COMPRESSED CHARACTER SET utf8mb4", _text(_UTF8, 300), "mariadb"),
    Kind("TEXT COMPRESSED CHARACTER SET utf8mb4", _text(_UTF8, 300), "mariadb"),
    Kind("BLOB COMPRESSED", _bytes(600), "mariadb"),
)  # fmt: skip


def _rows(kinds: list[Kind]) -> st.SearchStrategy[list[tuple[str, ...]]]:
    cells = [st.just("NULL") | kind.values | kind.values | kind.values for kind in kinds]
    return st.lists(st.tuples(*cells), min_size=ROWS, max_size=ROWS)


def _insert(server: Server, table: str, kinds: list[Kind], rows: list[tuple[str, ...]]) -> bytes:
    """The log of one INSERT into a new table."""
    columns = ", ".join(f"c{number} {kind.definition} NULL" for number, kind in enumerate(kinds))
    values = ", ".join(f"({number}, {', '.join(row)})" for number, row in enumerate(rows))
    server.run(
        f"DROP TABLE IF EXISTS {table}",
        f"CREATE TABLE {table} (id INT PRIMARY KEY, {columns})",
        "FLUSH BINARY LOGS",
        *SESSION,
        f"INSERT INTO {table} VALUES {values}",
        database="t",
    )
    return dump(server, _last_file(server))


def _last_file(server: Server) -> str:
    return str(server.run("SHOW BINARY LOGS")[-1][0])


_EXAMPLES = settings(
    max_examples=6, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_generated_rows_of_every_type_equal_select(source: Server) -> None:
    server = f"{source.flavor} {source.version}"
    kinds = [kind for kind in KINDS if server.startswith(kind.flavor)]

    @_EXAMPLES
    @given(_rows(kinds))
    def agree(rows: list[tuple[str, ...]]) -> None:
        data = _insert(source, "made", kinds, rows)
        defined = definitions(source, "made")
        whole = decode_all(data, mariadb=source.flavor == "mariadb", chunk=4099, defined=defined)
        decoded = whole.table("made").to_pylist()
        assert_select_gives_the_same(source, whole.table("made"), "made")
        columns, expected = read_source(source, "t", "made")
        comparison = compare("made", columns, expected, decoded, {column.name: column.name for column in columns})
        assert comparison.equal, comparison
        assert comparison.source_rows == ROWS

    agree()


def test_generated_vectors_of_mariadb_equal_select(source: Server) -> None:
    if not source.version.startswith("11.8"):
        pytest.skip("MariaDB has vectors from 11.7 on")
    most = 2.0**63  # the server makes NULL of a vector whose squares add up to more than a FLOAT holds
    kinds = [Kind("VECTOR(3)", _vectors(_floats(32, most)).map("VEC_FromText({})".format))]

    @_EXAMPLES
    @given(_rows(kinds))
    def agree(rows: list[tuple[str, ...]]) -> None:
        decoded = decode_all(_insert(source, "made", kinds, rows), mariadb=True)
        # the log has a VARBINARY there, and does not say more
        logged = definition_of(tuple(planned.column for planned in decoded.batches[0].plan.columns))
        assert_select_gives_the_same(source, decoded.table("made"), "made", logged)

    agree()


def test_generated_rows_when_read_by_mysql_replication_are_the_same(source: Server) -> None:
    kinds = [kind for kind in KINDS if kind.agreed]

    @_EXAMPLES
    @given(_rows(kinds))
    def agree(rows: list[tuple[str, ...]]) -> None:
        data = _insert(source, "agreed_on", kinds, rows)
        ours = decode_all(data, mariadb=source.flavor == "mariadb").table("agreed_on").to_pylist()
        theirs = list(_oracle(source, "agreed_on"))
        names = ["id", *(f"c{number}" for number in range(len(kinds)))]
        assert [{name: row[name] for name in names} for row in ours] == theirs
        assert len(theirs) == ROWS

    agree()


def _oracle(server: Server, table: str) -> Iterator[dict[str, object]]:
    stream = BinLogStreamReader(
        {"host": server.host, "port": server.port, "user": "menura", "password": "menura-secret"},
        server_id=77002,
        only_events=[WriteRowsEvent],
        only_tables=[table],
        log_file=_last_file(server),
        log_pos=4,
        resume_stream=True,
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            for event in stream:
                yield from (row["values"] for row in event.rows)
    finally:
        stream.close()
