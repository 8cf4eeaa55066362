"""Rows by their names on both databases: whatever a name has in it, and however many there are."""

import pytest
from sqlalchemy import insert, select

from controlplane_api.database import Database
from controlplane_api.lookups import among
from controlplane_api.models import Source, SourceTable, Tenant

HOSTILE = ("plain", "it's", 'a "quoted" one', "back\\slash", "$[0]", "[1]", "%s %(x)s :y", "ünï\u2028code", " ", "")


@pytest.fixture
def source_id(database: Database) -> int:
    with database.write() as connection:
        tenant_id = connection.execute(
            insert(Tenant).values(name="acme", created_at_us=1).returning(Tenant.id)
        ).scalar_one()
        made = insert(Source).values(tenant_id=tenant_id, name="shop", flavor="mysql").returning(Source.id)
        return int(connection.execute(made).scalar_one())


def test_rows_when_their_names_are_asked_for_then_those_alone_are_found(database: Database, source_id: int) -> None:
    names = [(one, other) for one in HOSTILE for other in HOSTILE]
    with database.write() as connection:
        connection.execute(
            insert(SourceTable),
            [
                {"source_id": source_id, "database": one, "name": other, "columns": [], "keys": []}
                for one, other in names
            ],
        )
    some = names[::3]
    with database.read() as connection:
        found = connection.execute(
            select(SourceTable.database, SourceTable.name).where(among((SourceTable.database, SourceTable.name), some))
        )
        assert sorted(map(tuple, found)) == sorted(some)


def test_rows_when_a_part_of_their_names_is_a_number_then_they_are_found(database: Database, source_id: int) -> None:
    columns = SourceTable.source_id, SourceTable.name
    with database.write() as connection:
        row = {"source_id": source_id, "database": "d", "columns": [], "keys": []}
        connection.execute(insert(SourceTable), [row | {"name": name} for name in ("1", "2")])
    with database.read() as connection:
        asked = select(SourceTable.name).where(among(columns, [(source_id, "2"), (source_id + 1, "1")]))
        assert connection.execute(asked).scalars().all() == ["2"]
        assert connection.execute(select(SourceTable.name).where(among(columns, []))).all() == []


def test_rows_when_many_names_are_asked_for_then_the_statement_has_one_parameter(database: Database) -> None:
    few, many = ([(f"tenant {number}",) for number in range(count)] for count in (1, 100_000))
    texts = {
        str(select(Tenant.id).where(among((Tenant.name,), names)).compile(database.engine)) for names in (few, many)
    }
    assert len(texts) == 1
    with database.read() as connection:
        assert connection.execute(select(Tenant.id).where(among((Tenant.name,), many))).all() == []
