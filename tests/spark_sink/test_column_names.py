"""Names that the lake needs itself, or can't tell apart, or that Delta refuses: every column gets one of its own."""

# ruff: noqa: RUF001  (letters that look alike are what this is about)

import re
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from menura.change_batch import LANDED_COLUMNS, RESERVED_NAMES, is_reserved, landed_column, source_column
from menura.naming import is_plain, lake_column, name_before, set_aside
from pyspark.sql import SparkSession

from spark_sink.reading import changelog, current_state, current_state_frame
from tests.servers import ROOT
from tests.spark_sink.landing import Table, Writer, altered, apply_entries, delete, insert, lake_rows, table_id, update

#: two names of each pair are two columns on one server at least
APART = (
    ("ﬁ", "fi"), ("ß", "ss"), ("ẞ", "ß"), ("ς", "σ"), ("ς", "Σ"), ("ſ", "s"), ("µ", "μ"), ("ı", "i"), ("İ", "i"),
    ("\N{KELVIN SIGN}", "k"), ("\N{OHM SIGN}", "ω"), ("\N{ANGSTROM SIGN}", "å"), ("ϴ", "θ"), ("Ⴀ", "ⴀ"), ("Ԁ", "ԁ"),
    ("_gsn", "%5Fgsn"), ("_gsn", "gsn"), ("a b", "a%20b"), ("a~1", "a%7E1"), ("é", "%C3%A9"),
    ("ΑΣ", "ας"),
)  # fmt: skip
SIGNS = "aAkKﬁßẞςσΣſsıİiµ_%~1205Ffgsn \N{KELVIN SIGN}ԀԁéÉ"
NAMES = st.text(st.sampled_from(SIGNS), min_size=1, max_size=8) | st.text(min_size=1, max_size=12).filter(
    lambda name: name.isprintable()
)


@pytest.mark.parametrize(("one", "other"), APART)
def test_columns_that_a_server_tells_apart_when_named_then_the_lake_tells_them_apart_without_case(
    one: str, other: str
) -> None:
    assert lake_column(one).lower() != lake_column(other).lower()
    assert lake_column(f"a{one}").lower() != lake_column(f"a{other}").lower()


@given(one=NAMES, other=NAMES)
def test_any_two_names_when_their_lake_names_are_equal_without_case_then_they_differ_by_plain_case_alone(
    one: str, other: str
) -> None:
    assert _unescaped(lake_column(one)) == one, "nothing is lost"
    if lake_column(one).lower() == lake_column(other).lower():
        assert [_simple(letter) for letter in one] == [_simple(letter) for letter in other]


def _unescaped(name: str) -> str:
    raw = re.sub(rb"%([0-9A-F]{2})", lambda match: bytes([int(match[1], 16)]), name.encode())
    return raw.decode()


def _simple(letter: str) -> str:
    return letter.lower() if is_plain(letter) else letter


@given(name=NAMES)
def test_any_name_when_it_lands_or_comes_to_the_lake_then_it_is_none_of_ours_and_can_be_told(name: str) -> None:
    assert source_column(landed_column(name)) == name
    assert not is_reserved(landed_column(name)) and not is_reserved(lake_column(name))
    assert name_before(lake_column(name)) == lake_column(name)
    assert name_before(set_aside(lake_column(name), 12)) == lake_column(name)
    assert not set(lake_column(name)) & set(" ,;{}()\n\t=")


RESERVED = [
    *sorted(RESERVED_NAMES),
    "_menura_row",
    "_Menura_Key",
    "_commit_version",
    "ﬁ",
    "fi",
    "ß",
    "ss",
    "v~1",
    "%5Fgsn",
]


def test_columns_of_every_reserved_name_when_followed_then_the_lake_has_their_values(
    writer: Writer, lake: Path, session: SparkSession
) -> None:
    """`landing` calls columns as they land; an event calls them as the source does."""
    landed = Table("t", {"id": pa.int32(), **{landed_column(name): pa.string() for name in RESERVED}})
    named = Table("t", {"id": pa.int32(), **dict.fromkeys(RESERVED, pa.string())})
    values = {landed_column(name): f"{name}." for name in RESERVED}
    lacks = {**values, landed_column("_absent"): None, "_absent": (landed_column("_absent"),)}
    writer.cut(altered(named, kind="CREATED"), (landed, [insert(id=1, **values), insert(id=2, **lacks)]))
    writer.cut((landed, [update({"id": 2, **values}, {"id": 3, **values}), delete(id=1, **values)]))
    assert [outcome.message for outcome in apply_entries(writer.folder, lake)] == [""]
    (row,) = current_state(str(lake), table_id(landed)).to_pylist()
    assert {name: row[lake_column(name)] for name in RESERVED} == {name: f"{name}." for name in RESERVED}
    logged = changelog(str(lake), table_id(landed)).sort_by("_gsn").to_pylist()
    assert [row["_change_type"] for row in logged] == ["insert"] * 2 + ["update_preimage", "update_postimage", "delete"]
    assert logged[1]["_absent"] == '["%5Fabsent"]' and logged[0][lake_column("_gsn")] == "_gsn."
    assert set(LANDED_COLUMNS) <= set(logged[0])
    frame = current_state_frame(session, str(lake), table_id(landed))
    assert frame.select(*(f"`{lake_column(name)}`" for name in RESERVED)).collect()[0][0] == f"{RESERVED[0]}."


def test_a_column_of_a_reserved_name_when_it_is_renamed_dropped_and_added_again_then_values_follow(
    writer: Writer, lake: Path
) -> None:
    def table(*names: str) -> Table:
        return Table("t", {"id": pa.int32(), **dict.fromkeys(map(landed_column, names), pa.string())})

    def event(*names: str, **more: object) -> object:
        return altered(Table("t", {"id": pa.int32(), **dict.fromkeys(names, pa.string())}), **more)  # type: ignore[arg-type]

    steps = [
        (table("_gsn"), [insert(id=1, **{"%5Fgsn": "a"})]),
        event("plain", renamed={"plain": "_gsn"}),
        (table("plain"), [insert(id=2, plain="b")]),
        event("ﬁ", "fi", renamed={"ﬁ": "plain"}, added={"fi": "c"}),
        event("ﬁ", "_GSN", renamed={"_GSN": "fi"}),
        event("ﬁ"),
        event("ﬁ", "_gsn", added={"_gsn": None}),
        (table("ﬁ", "_gsn"), [insert(id=3, **{"ﬁ": "d", "%5Fgsn": "e"})]),
    ]
    for step in steps:
        writer.cut(step)  # type: ignore[arg-type]
    assert [outcome.message for outcome in apply_entries(writer.folder, lake)] == [""]
    rows = lake_rows(lake, Table("t", {"id": pa.int32(), "ﬁ": pa.string(), "_gsn": pa.string()}))
    assert rows == [
        {"id": 1, "ﬁ": "a", "%5Fgsn": None}, {"id": 2, "ﬁ": "b", "%5Fgsn": None}, {"id": 3, "ﬁ": "d", "%5Fgsn": "e"}
    ]  # fmt: skip


def test_values_that_a_column_of_a_reserved_name_cannot_hold_when_followed_then_the_sources_name_says_whose_they_are(
    writer: Writer, lake: Path
) -> None:
    table = Table("t", {"%5Fabsent": pa.date32(), "n": pa.int32()}, key=("%5Fabsent",))
    zero, later = '{"_absent":"0000-00-00"}', '{"_absent":"2024-00-00"}'
    key = {"%5Fabsent": None}
    writer.cut((table, [insert(n=1, _unrepresentable=zero, **key), insert(n=2, _unrepresentable=later, **key)]))
    writer.cut((table, [delete(n=1, _unrepresentable=zero, **key)]))
    assert [outcome.message for outcome in apply_entries(writer.folder, lake)] == [""]
    (row,) = current_state(str(lake), table_id(table)).to_pylist()
    assert (row["n"], row["_unrepresentable"]) == (2, later)


def test_the_page_of_types_when_it_names_columns_then_the_lake_calls_them_so() -> None:
    text = (ROOT / "agent" / "TYPES.md").read_text()
    shown = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", text[text.index("## Names of columns") :], re.MULTILINE)
    assert len(shown) >= 6
    assert [lake_column(name) for name, _ in shown] == [column for _, column in shown]
