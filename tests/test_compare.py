"""What the comparison of a source with a lake reads of the source."""

from pathlib import Path

import pytest

from tests.compare import SourceColumn, compare, lake_value, read_source
from tests.servers import FLAVORS, Flavor, server


def test_text_when_it_is_none_in_utf8_then_it_is_read_by_its_bytes_as_a_lake_has_it(tmp_path: Path) -> None:
    """MariaDB takes half a surrogate pair for text."""
    with server("mariadb", tmp_path / "server") as database:
        database.run(
            "CREATE DATABASE shop CHARACTER SET utf8mb4",
            "CREATE TABLE shop.t (id INT, t VARCHAR(20))",
            "INSERT INTO shop.t VALUES (1, X'3FEDB19C'), (2, 'ä')",
        )
        columns, rows = read_source(database, "shop", "t")
    lake = [
        {"id": 1, "t": None, "_unrepresentable": '{"t": "0x3FEDB19C"}'},
        {"id": 2, "t": "ä", "_unrepresentable": None},
    ]
    assert compare("shop.t", columns, rows, lake, {"id": "id", "t": "t"}).equal


@pytest.mark.parametrize("flavor", FLAVORS)
def test_value_when_the_server_prints_less_than_it_holds_then_all_of_it_is_read(flavor: Flavor, tmp_path: Path) -> None:
    """Codes that are no characters are printed as question marks, and a double as its definition says."""
    with server(flavor, tmp_path / "server") as database:
        database.run(
            "CREATE DATABASE shop CHARACTER SET utf8mb4",
            "CREATE TABLE shop.t (id INT, t VARCHAR(20) CHARACTER SET gbk, d DOUBLE(30,2))",
            "INSERT INTO shop.t VALUES (1, X'ABAB', 0.25), (2, X'ABAB3F', 1), (3, '??a', 3)",
            "ALTER TABLE shop.t MODIFY d DOUBLE",
            "UPDATE shop.t SET d = 0.125 WHERE id = 1",
            "ALTER TABLE shop.t MODIFY d DOUBLE(30,2)",
        )
        _, rows = read_source(database, "shop", "t")
    assert rows == [("1", "0xABAB", 0.125), ("2", "0xABAB3F", 1.0), ("3", "??a", 3.0)]


def test_value_when_the_lakes_column_is_of_another_type_then_it_equals_none() -> None:
    for kind, value, shown in (
        ("int", "x", "x"), ("int", "1.5", "1.5"), ("decimal", "E", "E"), ("date", "2020-01-01", "2020-01-01"),
        ("double", 1, 1.0), ("bit", b"x", b"x"),
    ):  # fmt: skip
        assert lake_value(SourceColumn("c", kind, kind, 0, 0), value, None) != shown


def test_bits_when_the_lake_still_has_more_than_the_column_takes_then_they_equal_none() -> None:
    column = SourceColumn("c", "bit", "bit(8)", 0, 0)
    assert lake_value(column, 258, None) == ("int", 258)
    assert lake_value(column, 255, None) == b"\xff"


def test_text_when_a_geometry_has_become_it_then_its_bytes_are_read_and_no_question_marks(tmp_path: Path) -> None:
    """MariaDB keeps a geometry's bytes, of which ASCII has not all, in a text of that charset."""
    with server("mariadb", tmp_path / "server") as database:
        database.run(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.t (id INT, t GEOMETRY)",
            "INSERT INTO shop.t VALUES (1, ST_GeomFromText('POINT(1 1)'))",
            "ALTER TABLE shop.t MODIFY t VARCHAR(300) CHARACTER SET ascii",
            "INSERT INTO shop.t VALUES (2, 'what?')",
        )
        _, rows = read_source(database, "shop", "t")
    assert rows == [("1", "0x000000000101000000000000000000F03F000000000000F03F"), ("2", "what?")]
