"""What all tables have in common."""

from typing import Any

from sqlalchemy import JSON, BigInteger, Integer, MetaData, Row, Text
from sqlalchemy.orm import DeclarativeBase

Id = BigInteger().with_variant(Integer, "sqlite")


Document = JSON(none_as_null=True)


#: of a SELECT; its columns are those that the statement names
AnyRow = Row[*tuple[Any, ...]]


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ix": "ix_%(table_name)s_%(column_0_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
        }
    )
    type_annotation_map = {str: Text, int: BigInteger, dict[str, Any]: Document, list[Any]: Document}  # noqa: RUF012
