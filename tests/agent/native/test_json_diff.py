"""Changes of JSON values (PARTIAL_JSON): MySQL logs them, SELECT says what they lead to."""

# ruff: noqa: E501  (SQL)

import json
import random
from contextlib import closing

import pyarrow as pa
import pytest

from agent.sources.mysql.log import constants as binlog
from agent.sources.mysql.native.decoder import BinlogDecoder, DecodeError
from tests.agent.native.capture import decode_all, dump, logged
from tests.agent.native.mutation import packets, payloads, without_checksums
from tests.servers import Server

DOCUMENT = (
    '{"a": [1, 2, {"b": 1.0, "deep": [[1, {"x": []}]]}], "bb": {"x": "%s", "é": null, "aa": false}, "c c": 12345678901234567890,'
    ' "d": 1e20, "0": true, "q\\\\"q\\\\\\\\": 1, "": {}, "k.k[0]": [true]}' % ("y" * 300)
)
TABLE = (
    "DROP TABLE IF EXISTS doc",
    "CREATE TABLE doc (id INT PRIMARY KEY, j JSON, other JSON, note VARCHAR(20))",
    f"INSERT INTO doc VALUES (1, '{DOCUMENT}', '{DOCUMENT}', 'n'), (2, NULL, '[1, 2, 3, \"{'z' * 100}\"]', NULL)",
    "SET SESSION binlog_row_value_options = 'PARTIAL_JSON'",
)
CHANGES = (
    "JSON_SET(j, '$.a[0]', 7)",
    "JSON_SET(j, '$.a[last]', 'x')",
    "JSON_SET(j, '$.a[last-1]', 2.50)",
    "JSON_SET(j, '$.new', CAST('[1, {\"k\": 1}, 1.0, 1e3]' AS JSON))",
    "JSON_REMOVE(j, '$.a[0]')",
    "JSON_SET(j, '$.\"c c\"', 18446744073709551615)",
    'JSON_SET(j, \'$."q\\\\"q\\\\\\\\"\', CAST(1.10 AS DECIMAL(10,2)))',
    "JSON_SET(j, '$.a[99]', TIMESTAMP'2024-01-02 03:04:05.678')",
    "JSON_REMOVE(j, '$.bb.x')",
    "JSON_REPLACE(j, '$.bb.\"é\"', DATE'2024-01-02', '$.bb.aa', TIME'-838:59:59')",
    "JSON_SET(j, '$.a[0]', 1, '$.a[1]', 2, '$.zz', 3.0, '$.\"\"', NULL)",
    "JSON_SET(j, '$.d[1]', 5)",
    "JSON_INSERT(j, '$.n2', NULL, '$.\"k.k[0]\"[1]', FALSE)",
    "JSON_REMOVE(j, '$.a[last]', '$.\"k.k[0]\"[last-1]')",
    "JSON_SET(j, '$.bb', CAST(x'00ff10' AS JSON), '$.bb2', CAST(b'101' AS JSON))",
    "JSON_ARRAY_INSERT(j, '$.a[0]', 3)",
)


def _updated(source: Server, *expressions: str, where: str = "id = 1") -> tuple[bytes, list[tuple[object, ...]]]:
    """The log of the updates, and what SELECT gave after each."""
    source.run("FLUSH BINARY LOGS")
    file = str(source.run("SHOW BINARY LOGS")[-1][0])
    seen = []
    with closing(source.connect(database="t")) as connection, connection.cursor() as cursor:
        for statement in TABLE:
            cursor.execute(statement)
        for expression in expressions:
            cursor.execute(f"UPDATE doc SET j = {expression} WHERE {where}")
            changed = cursor.rowcount
            cursor.execute("SELECT j, other, note FROM doc WHERE id = 1")
            if changed:
                seen.append(cursor.fetchone())
    return dump(source, file), seen


def _after(data: bytes) -> list[tuple[object, ...]]:
    rows = decode_all(data, mariadb=False).table("doc").to_pylist()
    return [(row["j"], row["other"], row["note"]) for row in rows if row["_change_type"] == 2]


def _types(data: bytes) -> list[int]:
    return [payload[5] for payload in payloads(data) if len(payload) > 20]


def test_changes_of_json_values_give_the_text_that_select_gives(mysql: Server) -> None:
    data, seen = _updated(mysql, *CHANGES)

    assert _types(data).count(binlog.PARTIAL_UPDATE_ROWS_EVENT) == len(seen) == len(CHANGES)
    assert _after(data) == seen


def _paths(value: object, path: str = "$") -> list[str]:
    found = []
    if isinstance(value, dict):
        for key, member in value.items():
            inside = f"{path}.{json.dumps(key, ensure_ascii=False)}"
            found += [inside, *_paths(member, inside)]
    elif isinstance(value, list):
        for number, member in enumerate(value):
            inside = f"{path}[{number}]"
            found += [inside, f"{path}[last]", f"{path}[{len(value)}]", *_paths(member, inside)]
    return found


def test_random_changes_give_the_text_that_select_gives(mysql: Server) -> None:
    chance = random.Random(11)
    names = ["a", "bb", "é", "zz", "a b", "0", "A", "ab", 'q"', "\\", "aaaa"]

    def value(depth: int = 0) -> object:
        kind = chance.randrange(9 if depth < 4 else 7)
        scalars = [
            None,
            True,
            chance.randrange(-(1 << 63), 1 << 64),
            chance.random() * 10 ** chance.randrange(-20, 25),
            "",
            "ü" * chance.randrange(99),
            1.0,
        ]
        if kind < 7:
            return scalars[kind]
        if kind == 7:
            return [value(depth + 1) for _ in range(chance.randrange(5))]
        return {chance.choice(names): value(depth + 1) for _ in range(chance.randrange(6))}

    mysql.run("FLUSH BINARY LOGS")
    file = str(mysql.run("SHOW BINARY LOGS")[-1][0])
    seen = []
    with closing(mysql.connect(database="t")) as connection, connection.cursor() as cursor:
        for statement in TABLE:
            cursor.execute(statement)
        for _ in range(150):
            cursor.execute("SELECT j FROM doc WHERE id = 1")
            before = json.loads(cursor.fetchone()[0])
            paths = [*_paths(before), f"$.{json.dumps(chance.choice(names))}"]
            calls = "j"
            for _ in range(chance.choice([1, 1, 2, 4])):
                path, function = chance.choice(paths), chance.choice(["SET", "SET", "REPLACE", "INSERT", "REMOVE"])
                arguments = [path] if function == "REMOVE" else [path, json.dumps(value())]
                calls = f"JSON_{function}({calls}, {connection.escape(arguments[0])}"
                calls += f", CAST({connection.escape(arguments[1])} AS JSON))" if arguments[1:] else ")"
            cursor.execute(f"UPDATE doc SET j = {calls} WHERE id = 1")
            if cursor.rowcount:
                cursor.execute("SELECT j, other, note FROM doc WHERE id = 1")
                seen.append(cursor.fetchone())
    data = dump(mysql, file)

    assert _types(data).count(binlog.PARTIAL_UPDATE_ROWS_EVENT) > 50
    assert _after(data) == seen


def test_changes_in_many_rows_and_of_a_null_value_are_read(mysql: Server) -> None:
    data = logged(
        mysql,
        *TABLE,
        "UPDATE doc SET j = JSON_SET(j, '$.a[0]', 5), other = JSON_REMOVE(other, '$[1]')",
        "UPDATE doc SET note = 'only the note'",
        "UPDATE doc SET j = '[1]' WHERE id = 2",
        "DELETE FROM doc WHERE id = 1",
        "UPDATE doc SET id = 3",
    )

    rows = decode_all(data, mariadb=False).table("doc").to_pylist()

    (selected,) = mysql.run("SELECT id, j, other, note FROM t.doc")
    last = rows[-1]
    assert (last["id"], last["j"], last["other"], last["note"]) == selected
    assert binlog.PARTIAL_UPDATE_ROWS_EVENT in _types(data)


def test_columns_that_are_not_sent_need_no_value_before(mysql: Server) -> None:
    data = logged(
        mysql, *TABLE, "SET SESSION binlog_row_image = 'MINIMAL'", f"UPDATE doc SET note = 'm', j = {CHANGES[0]}"
    )

    rows = decode_all(data, mariadb=False, ignored=["j"]).table("doc").to_pylist()
    with pytest.raises(DecodeError, match=r"t\.doc, column j: .*binlog_row_image to FULL") as caught:
        decode_all(data, mariadb=False)

    assert rows[-1]["note"] == "m"
    assert caught.value.event_type == binlog.PARTIAL_UPDATE_ROWS_EVENT
    assert caught.value.column == 1
    assert caught.value.table_id > 0


def test_noblob_image_holds_the_value_that_is_changed_in_parts(mysql: Server) -> None:
    data = logged(
        mysql, *TABLE, "SET SESSION binlog_row_image = 'NOBLOB'", f"UPDATE doc SET j = {CHANGES[0]} WHERE id = 1"
    )

    rows = decode_all(data, mariadb=False).table("doc").to_pylist()

    assert rows[-1]["j"] == mysql.run("SELECT j FROM t.doc WHERE id = 1")[0][0]


def test_damaged_changes_give_an_answer_or_a_decode_error(mysql: Server) -> None:
    data, _ = _updated(mysql, *CHANGES)
    whole = list(payloads(without_checksums(data)))
    updates = [
        number for number, kind in enumerate(payload[5] if len(payload) > 20 else 0 for payload in whole) if kind == 39
    ]
    chance = random.Random(4)
    reasons = set()
    for _ in range(2000):
        number = chance.choice(updates)
        payload = bytearray(whole[number])
        at = chance.randrange(len(payload) - 90, len(payload))
        payload[at] = chance.choice([0, 1, 2, 3, 0x5B, 0x7F, 0xFC, 0xFF, chance.randrange(256)])
        # the update's own GTID, BEGIN and table map in the place of the first one's
        damaged = [*whole[: updates[0] - 3], *whole[number - 3 : number], bytes(payload)]
        decoder = BinlogDecoder(mariadb=False, checksum=False, next_gsn=1, next_transaction_id=1)
        try:
            batches = decode_all(b"".join(map(packets, damaged)), mariadb=False, decoder=decoder).batches
        except DecodeError as error:
            reasons.add(str(error).partition(": ")[2])
            batches = decoder.take_batches()
        for batch in batches:
            pa.record_batch(batch.rows).validate(full=True)
    assert reasons >= {
        "a JSON change of unknown kind",
        "a JSON change that ends too early",
        "a JSON path that can't be read",
        "a JSON change that does not fit the value before",
    }
