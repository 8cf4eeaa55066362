"""What a file's metadata say that an insert stores, in the present forms and in those up to format 5."""

import datetime

import pyarrow as pa
import pytest

from spark_sink.landed.default_values import insert_default


@pytest.mark.parametrize(
    ("told", "type_", "source_type", "value", "unrepresentable"),
    [
        ("null", pa.int32(), "int", None, None),
        (":7", pa.int32(), "int", 7, None),
        (":-1500000", pa.int64(), "time(1)", -1_500_000, None),
        (":ff0000", pa.binary(), "binary(3)", b"\xff\0\0", None),
        (":", pa.string(), "text", "", None),
        (":true", pa.bool_(), "boolean", True, None),
        (":false", pa.bool_(), "boolean", False, None),
        ("null", pa.bool_(), "boolean", None, None),
        (":2024-02-29 23:59:59.5", pa.timestamp("us", "UTC"), "timestamp(1)",
         datetime.datetime(2024, 2, 29, 23, 59, 59, 500_000, tzinfo=datetime.UTC), None),
        ("!0000-00-00", pa.date32(), "date", None, "0000-00-00"),
        ("=7", pa.int32(), "int", 7, None),
        ("=-00:00:01.5", pa.int64(), "time(1)", -1_500_000, None),
        ("=FF", pa.binary(), "binary(3)", b"\xff\0\0", None),
        ("=0000-00-00", pa.date32(), "date", None, "0000-00-00"),
        ("=2024-02-29", pa.date32(), "date", datetime.date(2024, 2, 29), None),
    ],
)  # fmt: skip
def test_default_when_it_is_told_in_either_form_then_it_is_the_value(
    told: str, type_: pa.DataType, source_type: str, value: object, unrepresentable: str | None
) -> None:
    found = insert_default(told, type_, source_type)
    assert (found.value.as_py(), found.unrepresentable, found.is_unknown) == (value, unrepresentable, False)


@pytest.mark.parametrize(
    ("told", "type_"),
    [*((told, pa.int32()) for told in ("", "7", ":seven", "=0x")), (":0000-00-00", pa.date32()),
     *((told, pa.bool_()) for told in (":t", ":", ":2", ":NULL"))],
)  # fmt: skip
def test_default_when_it_is_none_of_its_type_then_it_is_refused(told: str, type_: pa.DataType) -> None:
    with pytest.raises((pa.ArrowException, ValueError)):
        insert_default(told, type_, "int")
