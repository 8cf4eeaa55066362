"""Which letters real servers take for one another in columns' names: `menura.naming.lake_column` builds on it."""

from contextlib import closing
from pathlib import Path

import pytest
from menura.naming import is_plain
from pymysql.constants import ER
from pymysql.err import OperationalError

from tests.servers import TESTED, Flavor, server


@pytest.mark.parametrize(("flavor", "version"), TESTED)
def test_capital_letters_that_the_lake_keeps_when_a_table_has_the_small_ones_then_every_server_refuses_them(
    flavor: Flavor, version: str, tmp_path: Path
) -> None:
    kept = [chr(code) for code in range(0x41, 0xD800) if chr(code) != chr(code).lower() and is_plain(chr(code))]
    kept += [chr(code) for code in range(0xE000, 0x10000) if chr(code) != chr(code).lower() and is_plain(chr(code))]
    assert len(kept) > 500
    with server(flavor, tmp_path, release=version) as running:
        running.run("CREATE DATABASE names")
        with closing(running.connect(database="names")) as connection, connection.cursor() as cursor:
            for letter in kept:
                with pytest.raises(OperationalError) as refused:
                    cursor.execute(f"CREATE TABLE t (`a{letter}` INT, `a{letter.lower()}` INT)")
                assert refused.value.args[0] == ER.DUP_FIELDNAME, letter
