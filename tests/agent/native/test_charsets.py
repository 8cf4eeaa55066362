"""Charsets: every byte and every pair of bytes against what the server makes of them; invalid bytes as they really come."""

# ruff: noqa: E501  (SQL)

import json
import re
from collections.abc import Iterator
from contextlib import closing
from operator import itemgetter

from agent.sources.mysql.log.charsets import decode_text
from agent.sources.mysql.schema.table_planner import definition_of
from tests.agent.native.capture import decode_all, logged
from tests.agent.native.selection import assert_select_gives_the_same, selected
from tests.servers import Server

OF_SEVERAL_BYTES = (
    *("big5", "cp932", "eucjpms", "euckr", "gb18030", "gb2312", "gbk", "sjis"),
    *("ucs2", "ujis", "utf16", "utf16le", "utf8mb3", "utf8mb4"),
)
#: MySQL drops other bytes of eucjpms in silence
EUC = re.compile(rb"([\x00-\x7f]|\x8e[\xa1-\xdf]|\x8f?[\xa1-\xfe]{2})*")
OF_UNICODE = ("gb18030", "ucs2", "utf16", "utf16le", "utf32", "utf8mb3", "utf8mb4")


def _charsets(server: Server) -> list[str]:
    listed = server.run("SELECT character_set_name FROM information_schema.character_sets")
    return [str(name) for (name,) in listed if name != "binary"]


def _converted(server: Server, charset: str, prefix: bytes, length: int) -> Iterator[tuple[bytes, str | None]]:
    """All sequences of so many bytes after `prefix`, and the server's text; None: it has none."""
    text = f"CONCAT(X'{prefix.hex()}', IF({length} = 2, x.b, ''), y.b)"
    converted = f"IFNULL(HEX(CONVERT(CONVERT({text} USING {charset}) USING utf8mb4)), '-')"
    with closing(server.connect(database="t")) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION group_concat_max_len = 1000000")
        where = "" if length == 2 else "WHERE x.n = 0"
        cursor.execute(f"SELECT x.n, GROUP_CONCAT({converted} ORDER BY y.n) FROM bytes x, bytes y {where} GROUP BY x.n")
        for first, listed in cursor.fetchall():
            for second, hexadecimal in enumerate(listed.split(",")):
                raw = prefix + bytes([first, second])[2 - length :]
                yield raw, _text(charset, raw, hexadecimal)


def _text(charset: str, raw: bytes, hexadecimal: str) -> str | None:
    """The server's text; '?' for bytes that are none, a table's U+FFFD, half a surrogate pair and no text at all are not text."""
    if hexadecimal in ("-", "") or (charset == "eucjpms" and EUC.fullmatch(raw) is None):
        return None
    text = bytes.fromhex(hexadecimal).decode("utf-8", "surrogatepass")
    replaced = text.count("?") > raw.count(b"?") or (charset not in OF_UNICODE and "\ufffd" in text)
    return None if replaced or any("\ud800" <= character <= "\udfff" for character in text) else text


def _ours(charset: str, raw: bytes) -> str | None:
    try:
        return decode_text(charset, raw)
    except UnicodeDecodeError:
        return None


def _cases(charset: str) -> list[tuple[bytes, int]]:
    """(prefix, how many bytes after it)"""
    if charset == "utf32":
        return [(b"\0\0", 2), (b"\0\x10", 2), (b"\0\x11", 2)]
    if charset in ("ucs2", "utf16", "utf16le"):
        return [(b"", 2)]
    cases = [(b"", 1), (b"", 2)] if charset in OF_SEVERAL_BYTES else [(b"", 1)]
    if charset in ("ujis", "eucjpms"):
        cases.append((b"\x8f", 2))
    if charset == "gb18030":
        cases += [(b"\x81\x35", 2), (b"\x84\x31", 2), (b"\xe3\x32", 2)]
    return cases


def test_every_sequence_of_one_and_two_bytes_is_what_the_server_makes_of_it(source: Server) -> None:
    values = ", ".join(f"({byte}, X'{byte:02X}')" for byte in range(256))
    source.run(
        "DROP TABLE IF EXISTS bytes",
        "CREATE TABLE bytes (n INT PRIMARY KEY, b VARBINARY(1))",
        f"INSERT INTO bytes VALUES {values}",
        database="t",
    )
    for charset in _charsets(source):
        cases = _cases(charset)
        for prefix, length in cases:
            theirs = dict(_converted(source, charset, prefix, length))
            different = {raw.hex(): text for raw, text in theirs.items() if _ours(charset, raw) != text}
            assert not different, (charset, prefix, len(different), list(different.items())[:5])
            assert len(theirs) == 256**length


#: column, charset, bytes that at least one server stores although they are none of its characters
UNASSIGNED = (
    *(("sjis", "8540"), ("big5", "A1C3"), ("tis620", "A0"), ("greek", "A4"), ("cp1256", "8A"), ("hebrew", "A1")),
    *(
        ("gb2312", "A2A1"),
        ("euckr", "A2E8"),
        ("ujis", "8FA1A1"),
        ("ascii", "FF"),
        ("ucs2", "D800"),
        ("utf32", "0000D800"),
    ),
    *(("utf8mb3", "EDA080"), ("utf8mb4", "EDA080")),
)


def test_bytes_that_a_server_lets_in_although_they_are_no_text_are_kept_and_the_table_goes_on(source: Server) -> None:
    columns = ", ".join(f"c{n} VARCHAR(20) CHARACTER SET {charset}" for n, (charset, _) in enumerate(UNASSIGNED))
    values = ", ".join(f"_binary X'{raw}'" for _, raw in UNASSIGNED)
    data = logged(
        source,
        "DROP TABLE IF EXISTS loose",
        f'CREATE TABLE loose (id INT PRIMARY KEY, {columns}, `a"b\\\\` VARCHAR(9) CHARACTER SET sjis)',
        "SET sql_mode = ''",
        f"INSERT INTO loose VALUES (1, {values}, _binary X'618540')",
        "INSERT INTO loose (id, c0) VALUES (2, 'x')",
    )

    changes = decode_all(data, mariadb=source.flavor == "mariadb").table("loose")
    rows = changes.to_pylist()

    kept = json.loads(rows[0]["_unrepresentable"])
    (stored,) = source.run(
        f"SELECT {', '.join(f'HEX(c{n})' for n in range(len(UNASSIGNED)))} FROM t.loose WHERE id = 1"
    )
    let_in = [n for n, (_, raw) in enumerate(UNASSIGNED) if stored[n] == raw]
    assert {name: text for name, text in kept.items() if name.startswith("c")} == {
        f"c{n}": f"0x{stored[n]}" for n in let_in
    }
    assert all(rows[0][f"c{n}"] is None for n in let_in)
    assert len(let_in) >= (14 if source.flavor == "mariadb" else 10)
    assert "0x618540" in kept.values()
    assert (rows[1]["c0"], rows[1]["_unrepresentable"]) == ("x", None)
    assert_select_gives_the_same(source, changes, "loose")


def test_label_whose_bytes_are_no_text_is_told_by_its_bytes_and_the_others_are_not_touched(source: Server) -> None:
    data = logged(
        source,
        "DROP TABLE IF EXISTS labels",
        "SET sql_mode = ''",
        "CREATE TABLE labels (id INT PRIMARY KEY, e ENUM('a\"', X'8540') CHARACTER SET sjis, f SET('a\"', X'8540', 'c') CHARACTER SET sjis)",
        "INSERT INTO labels VALUES (1, 2, 7), (2, 1, 5), (3, 0, 2), (4, NULL, 0)",
    )

    decoded = decode_all(data, mariadb=source.flavor == "mariadb")

    rows = decoded.table("labels").to_pylist()
    assert [(row["e"], row["f"]) for row in rows] == [(None, None), ('a"', 'a",c'), ("", None), (None, "")]
    assert json.loads(rows[0]["_unrepresentable"]) == {"e": "0x8540", "f": 'a",0x8540,c'}
    assert [row["_unrepresentable"] for row in rows[1:]] == [None, '{"f":"0x8540"}', None]
    assert str(decoded.batches[0].plan.columns[1].column.type) == "enum('a\"',0x8540) charset sjis"
    described = definition_of(tuple(planned.column for planned in decoded.batches[0].plan.columns))
    assert_select_gives_the_same(source, decoded.table("labels"), "labels", described)
    # information_schema has '?' for that label, but no row has
    found = sorted(selected(source, "labels").to_pylist(), key=itemgetter("id"))
    assert [row["e"] for row in found] == [row["e"] for row in rows]
    assert [(row["_unrepresentable"] or "").count("8540") for row in found] == [2, 0, 1, 0]


def test_select_without_a_charset_returns_the_bytes_that_the_log_has(source: Server) -> None:
    text = "日本 あいう"
    data = logged(
        source,
        "DROP TABLE IF EXISTS selected",
        "CREATE TABLE selected (id INT PRIMARY KEY, a VARCHAR(20) CHARACTER SET sjis, e ENUM('あ', 'b') CHARACTER SET ujis)",
        "SET sql_mode = ''",
        f"INSERT INTO selected VALUES (1, _binary X'8540', 1), (2, '{text}', 2)",
    )
    with closing(source.connect(database="t", use_unicode=False)) as connection, connection.cursor() as cursor:
        cursor.execute("SET character_set_results = NULL")
        cursor.execute("SELECT a, e FROM selected ORDER BY id")
        (invalid, label), (valid, _) = cursor.fetchall()

    rows = decode_all(data, mariadb=source.flavor == "mariadb").table("selected").to_pylist()

    assert rows[0]["_unrepresentable"] == f'{{"a":"0x{invalid.hex().upper()}"}}'
    assert rows[1]["a"] == decode_text("sjis", valid) == text
    assert rows[0]["e"] == decode_text("ujis", label) == "あ"


def test_compressed_text_that_is_invalid_is_kept_too(mariadb: Server) -> None:
    data = logged(
        mariadb,
        "DROP TABLE IF EXISTS loose_squeezed",
        "CREATE TABLE loose_squeezed (id INT PRIMARY KEY, a VARCHAR(300) COMPRESSED CHARACTER SET sjis)",
        "SET sql_mode = ''",
        "INSERT INTO loose_squeezed VALUES (1, REPEAT(_binary X'8540', 100))",
    )

    changes = decode_all(data, mariadb=True).table("loose_squeezed")
    (row,) = changes.to_pylist()

    assert (row["a"], row["_unrepresentable"]) == (None, '{"a":"0x' + "8540" * 100 + '"}')
    assert_select_gives_the_same(mariadb, changes, "loose_squeezed")
