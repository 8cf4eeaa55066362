"""Changes of the schema under each policy: the current state against an expectation that is computed by itself."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from menura.change_batch import ABSENT
from menura.landing import LandedColumn

from spark_sink.ingest.verifications import BY_POLICY
from spark_sink.lake import schema_change
from spark_sink.lake.schema_policy import SchemaPolicy, SchemaRules
from spark_sink.reading import changelog, current_state
from spark_sink.work import Result
from tests.spark_sink.driver import Driver
from tests.spark_sink.landing import (
    Chunk,
    Event,
    Table,
    Verified,
    Writer,
    altered,
    apply_entries,
    delete,
    insert,
    lake_rows,
    table_id,
    truncate,
)
from tests.spark_sink.schema_policy_cases import (
    ADDED,
    BEFORE,
    CASES,
    DOCUMENT,
    ROWS,
    Case,
    applied,
    expected,
    line,
)


@pytest.mark.history
@pytest.mark.parametrize("policy", SchemaPolicy)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_change_under_a_policy_when_applied_in_any_batches_then_the_lake_is_as_its_rules_say(
    case: Case, policy: SchemaPolicy, tmp_path: Path
) -> None:
    wanted = expected(policy, case)
    rows = sorted(wanted.rows, key=lambda row: int(str(row["id"])))
    for apart in (True, False):
        found = applied(case, policy, tmp_path / str(apart), apart=apart)
        assert [{name: value for name, value in row.items() if value is not None} for row in found.rows] == [
            {name: value for name, value in row.items() if value is not None} for row in rows
        ]
        if rows:
            assert set(found.rows[0]) == set(wanted.columns)
        departure = found.departure
        assert sorted(departure.not_followed) == sorted(wanted.not_followed)
        assert sorted(departure.kept) == sorted(wanted.kept)
        assert departure.rows_stay == wanted.rows_stay
        last = found.outcomes[-1]
        if policy is SchemaPolicy.EXCEPTION:
            assert (last.result, last.code) == (Result.STOPPED, "SCHEMA_CHANGED")
            first = case.batches[0][0]
            assert isinstance(first, Event)
            assert first.statement in last.message and "menura sync retry" in last.message
        else:
            assert last.message == "" and last.departure == departure.words
    lines = DOCUMENT.read_text().split(f"## {case.name}:")[1].split("\n\n")[1].splitlines()
    assert line(policy, found) in lines, "run python -m tests.spark_sink.schema_policy_cases"
    assert len(lines) == 2 + len(SchemaPolicy)


KEYLESS = replace(BEFORE, key=())
WITHOUT_A = Table("t", {"id": pa.int32(), "n": pa.int32()}, key=())


@pytest.mark.parametrize("policy", ["lenient", "ignore"])
def test_rows_without_a_key_when_a_column_is_kept_then_deletes_find_them_by_what_the_source_has(
    writer: Writer, lake: Path, policy: str
) -> None:
    rules = SchemaRules.parse([policy])
    writer.cut((KEYLESS, [insert(id=1, a="x", n=1), insert(id=2, a="y", n=2), insert(id=2, a="z", n=2)]))
    apply_entries(writer.folder, lake, schema_changes=rules)
    writer.cut(altered(WITHOUT_A), (WITHOUT_A, [delete(id=2, n=2), insert(id=3, n=3)]))
    (outcome,) = apply_entries(writer.folder, lake, first=2, schema_changes=rules)
    assert outcome.message == ""
    rows = [(row["id"], row["a"]) for row in lake_rows(lake, KEYLESS)]
    assert rows[0] == (1, "x") and rows[2] == (3, None)
    assert rows[1] in ((2, "y"), (2, "z")) and len(rows) == 3


def test_a_column_that_was_not_followed_when_the_policy_changes_then_earlier_rows_say_that_they_lack_it(
    writer: Writer, lake: Path
) -> None:
    writer.cut((BEFORE, [insert(**row) for row in ROWS]))
    writer.cut(altered(ADDED, added={"c": 5}), (ADDED, [insert(id=3, a="z", n=30, c=6)]))
    (ignoring,) = apply_entries(writer.folder, lake, schema_changes=SchemaRules.parse(["ignore"]))
    assert "not followed: c" in ignoring.departure
    writer.cut((ADDED, [insert(id=4, a="z", n=30, c=7)]))
    (evolving,) = apply_entries(writer.folder, lake, first=3)
    assert evolving.departure == ""
    rows = current_state(str(lake), table_id(BEFORE)).sort_by("id").to_pylist()
    assert [(row["c"], row["_absent"]) for row in rows] == [(None, '["c"]')] * 3 + [(7, None)]
    logged = changelog(str(lake), table_id(BEFORE)).sort_by("_gsn")
    assert logged["c"].to_pylist() == [None, None, 6, 7]


def test_a_column_of_an_unknown_type_when_the_policy_is_to_try_then_all_others_go_on(
    writer: Writer, lake: Path
) -> None:
    """As a newer gateway may land one."""
    strange = Table("t", {"id": pa.int32(), "s": pa.float16(), "a": pa.string(), "n": pa.int32(), "c": pa.int32()})
    told = altered(ADDED, added={"c": 5})
    unknown = LandedColumn("s", "vector", "e", earlier_rows="null")
    writer.cut((BEFORE, [insert(**row) for row in ROWS]))
    writer.cut(
        replace(told, columns=(told.columns[0], unknown, *told.columns[1:])),
        (strange, [insert(id=3, s=0.5, a="z", n=30, c=6)]),
    )
    partial = {"id": 1, "s": 0.5, "n": 11, "c": 8, ABSENT: ("a",)}
    writer.cut((strange, [[("update_postimage", partial)]]))
    (stopped,) = apply_entries(writer.folder, lake)
    assert (stopped.result, stopped.code) == (Result.STOPPED, "DATA_FILE_UNREADABLE")
    for _ in range(2):
        (trying,) = apply_entries(writer.folder, lake, schema_changes=SchemaRules.parse(["try_evolve"]))
        assert (trying.message, trying.departure) == (
            "",
            "columns of the source that are not followed: s",
        )
    assert lake_rows(lake, ADDED) == [
        {"id": 1, "a": "x", "n": 11, "c": 8},
        {"id": 2, "a": "y", "n": 20, "c": None},
        {"id": 3, "a": "z", "n": 30, "c": 6},
    ]


def test_a_change_that_the_lake_refuses_when_the_policy_is_to_try_then_rows_go_on_without_it(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.cut((BEFORE, [insert(**row) for row in ROWS]))
    apply_entries(writer.folder, lake)
    writer.cut(altered(ADDED, added={"c": 5}), (ADDED, [insert(id=3, a="z", n=30, c=6)]))
    rewrite = schema_change.rewrite

    def refusing(delta: DeltaTable, schema: pa.Schema, *others: Any) -> None:
        if "c" in schema.names:
            raise pa.ArrowInvalid("refused")
        rewrite(delta, schema, *others)

    monkeypatch.setattr(schema_change, "rewrite", refusing)
    add_columns = schema_change.add_columns
    monkeypatch.setattr(
        schema_change,
        "add_columns",
        lambda delta, schema: add_columns(delta, schema) if "c" not in schema.names else refusing(delta, schema),
    )
    (stopped,) = apply_entries(writer.folder, lake)
    assert (stopped.result, stopped.code) == (Result.STOPPED, "TABLE_UNEXPECTED")
    (trying,) = apply_entries(writer.folder, lake, schema_changes=SchemaRules.parse(["try_evolve"]))
    assert (trying.message, trying.departure) == ("", "columns of the source that are not followed: c")
    assert lake_rows(lake, BEFORE) == [*ROWS, {"id": 3, "a": "z", "n": 30}]
    assert changelog(str(lake), table_id(BEFORE)).sort_by("_gsn")["c"].to_pylist() == [None, None, 6]


@pytest.mark.parametrize("policy", ["evolve", "lenient"])
def test_a_verification_of_a_table_that_its_policy_lets_differ_then_is_unknown_with_the_policy(
    writer: Writer, lake: Path, policy: str
) -> None:
    dropped = Table("t", {"id": pa.int32(), "n": pa.int32()})
    driver = Driver(writer, lake)
    driver.schema_changes = SchemaRules.parse([policy])
    writer.cut((BEFORE, [insert(**row) for row in ROWS]))
    writer.cut(altered(dropped), (dropped, [insert(id=3, n=30)]))
    writer.cut(Event(dropped, "VERIFICATION_STARTED", dump="verification-1"))
    gsn = writer.last_gsns["acme", "shop"]
    writer.cut(Verified(dropped, [{"id": number, "n": number * 10} for number in (1, 2, 3)], gsn))
    writer.cut(Event(dropped, "VERIFIED", dump="verification-1"))
    driver.follow()
    found = driver.verdict()
    driver.verifications.stop(60)
    if policy == "evolve":
        assert (found["verdict"], found["reason"]) == ("equal", "")
    else:
        assert found["verdict"] == "unknown"
        assert (
            found["reason"].startswith(BY_POLICY) and "lenient: columns stay with former values: a" in found["reason"]
        )


@pytest.mark.parametrize("policy", ["lenient", "ignore"])
def test_rows_that_stay_when_a_dump_brings_the_table_anew_then_are_gone_and_the_columns_stay(
    writer: Writer, lake: Path, policy: str
) -> None:
    rules = SchemaRules.parse([policy])
    writer.cut((BEFORE, [insert(**row) for row in ROWS]))
    writer.cut(truncate(BEFORE))
    (before,) = apply_entries(writer.folder, lake, schema_changes=rules)
    assert "rows stay from before the table was truncated" in before.departure
    writer.cut(Event(BEFORE, "DUMP_STARTED", dump="anew"))
    gsn = writer.last_gsns["acme", "shop"]
    writer.cut(Chunk(BEFORE, [{"id": 7, "a": "q", "n": 70}], gsn, dump="anew"))
    writer.cut(Event(BEFORE, "DUMPED", dump="anew", removes_rows_before_gsn=gsn - 1))
    (after,) = apply_entries(writer.folder, lake, first=3, schema_changes=rules)
    assert (after.message, after.departure) == ("", "")
    assert lake_rows(lake, BEFORE) == [{"id": 7, "a": "q", "n": 70}]
