"""What a search finds: each type's values exactly, each hostile text an answer or an error that says what to change."""

import random
import threading
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from menura.instants import now_us

from spark_sink.errors import SearchRefused
from spark_sink.export.position import NOTHING
from spark_sink.export.rows import Row, Shape
from spark_sink.lake.delta_table import Layout
from spark_sink.search import asking, index_query
from spark_sink.search.asking import Found, Search
from spark_sink.search.columns import field_of
from spark_sink.search.entries import Definition, Entry, Reached
from spark_sink.search.index import SEARCHED_CHARS, VALUE_CHARS
from spark_sink.search.searching import engine_of, open_search
from spark_sink.work import TableId
from tests.spark_sink.test_search import Where

TABLE = TableId("acme", "shop", "shop", "things")
SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "title": pa.string(),
        "a = b": pa.string(),
        "amount": pa.decimal128(20, 0),
        "price": pa.decimal128(10, 2),
        "huge": pa.decimal128(38, 4),
        "ratio": pa.float64(),
        "day": pa.date32(),
        "at": pa.timestamp("us"),
        "seen": pa.timestamp("us", "UTC"),
        "spent": pa.int64(),
        "is_new": pa.bool_(),
        "raw": pa.binary(),
    }
)
SHAPE = Shape.of(
    SCHEMA,
    Layout("1", tuple(SCHEMA.names), ("id",), source_types=tuple("time" if n == "spent" else "" for n in SCHEMA.names)),
    field_of,
)
DEFINITION = Definition.of(SHAPE)


def written(where: Where, rows: Sequence[dict[str, object]]) -> Where:
    output = engine_of(where).output(TABLE, DEFINITION, None)
    found: list[Row] = list(SHAPE.rows(pa.Table.from_pylist(list(rows), SCHEMA)))
    output.upsert([Entry.of(each, DEFINITION) for each in found], are_new=True)
    output.commit(Reached("/lake", 1, now_us(), NOTHING, DEFINITION))
    output.close()
    return where


def search(where: Where, text: str = "", *filters: str, facets: Sequence[str] = (), limit: int = 100) -> Found:
    return open_search(where, TABLE).ask(Search(text, filters, facets, limit, timeout_seconds=60))


def ids(where: Where, text: str = "", *filters: str) -> list[int]:
    found = search(where, text, *filters)
    assert found.total == len(found.rows)
    return sorted(int(row["id"]) for row in found.rows)


TITLES = [
    "Red bicycle",
    "red Wine, dry",
    "Fahrräder: see http://a.example/b",
    "e-mail 42",
    None,
    "日本語 žluť",
    "",
]
TEXTS: list[dict[str, object]] = [
    {"id": number, "title": title, "a = b": "red" if number == 3 else None} for number, title in enumerate(TITLES)
]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Where:
    """An index of these; tests/spark_sink/test_search_opensearch_asking.py has others, and the same tests."""
    return written(tmp_path_factory.mktemp("texts"), TEXTS)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", [0, 1, 2, 3, 4, 5, 6]),
        ("RED", [0, 1, 3]),
        ("red -wine", [0, 3]),
        ("-red", [2, 4, 5, 6]),
        ("title:red", [0, 1]),
        ("red bicy*", [0]),
        ('"wine dry"', [1]),
        ('"dry wine"', []),
        ('title:"red wine"', [1]),
        ("fahrrader", [2]),
        ("http://a.example/b", [2]),
        ("e-mail", [3]),
        ("red 42", [3]),  # each word in any of its texts
        ("日本語", [5]),
        ("ŽLUT", [5]),
        ("red OR AND NOT", []),
        ("title:absent", []),
    ],
)
def test_a_text_when_it_is_searched_then_rows_have_all_of_its_words(texts: Where, text: str, found: list[int]) -> None:
    assert ids(texts, text) == found


@pytest.mark.parametrize(
    ("text", "filters", "facets", "limit", "says"),
    [
        ('a "phrase', (), (), 1, "quotation mark"),
        ("!!!", (), (), 1, "no letters"),
        ("*", (), (), 1, "no letters"),
        ("-", (), (), 1, "no letters"),
        ("a-b*", (), (), 1, "several words"),
        ("id:7", (), (), 1, "no text"),
        ("word " * 33, (), (), 1, "words"),
        ("x" * 1001, (), (), 1, "characters"),
        ("(" * 999, (), (), 1, "no letters"),
        ("", ("title",), (), 1, "compares nothing"),
        ("", ("title is open",), (), 1, "compares nothing"),
        ("", ("id is 5",), (), 1, "compares nothing"),
        ("", (" id=1",), (), 1, "compares nothing"),
        ("", (" none=1",), (), 1, "a column that the table has not"),
        ("", ("none=1",), (), 1, "a column that the table has not"),
        ("", ("id=x",), (), 1, "no integer"),
        ("", ("id=9223372036854775808",), (), 1, "no integer"),
        ("", ("price=1.005",), (), 1, "no decimal"),
        ("", ("huge<" + "9" * 39,), (), 1, "no wide decimal"),
        ("", ("ratio=1_0x",), (), 1, "no float"),
        ("", ("day=yesterday",), (), 1, "no date"),
        ("", ("at=2026-01-01T00:00:00Z",), (), 1, "no timestamp"),
        ("", ("is_new=maybe",), (), 1, "no boolean"),
        ("", ("raw=0x00",), (), 1, "no binary"),
        ("", ("raw IS NULL",), (), 1, "binary"),
        ("", ("title>a",), (), 1, "no order"),
        ("", (), ("none",), 1, "a column that the table has not"),
        ("", (), ("raw",), 1, "binary"),
        ("", (), ("id",) * 9, 1, "facets"),
        ("", ("id=1",) * 33, (), 1, "filters"),
        ("", (), (), 0, "limit"),
        ("", (), (), 1001, "limit"),
    ],
)
def test_a_search_when_it_can_not_be_answered_then_the_error_says_what_to_change(
    texts: Where, text: str, filters: tuple[str, ...], facets: tuple[str, ...], limit: int, says: str
) -> None:
    with pytest.raises(SearchRefused, match=says):
        search(texts, text, *filters, facets=facets, limit=limit)


def test_a_search_when_its_text_is_of_any_characters_then_it_is_answered_or_refused(texts: Where) -> None:
    choose = random.Random(1)
    signs = ['"', "'", "*", "-", ":", "(", ")", "[", "]", "{", "}", "^", "~", "\\", "/", "?", "+", "<", "=", " ", "\t",
             "\n", "\0", "\x1b", "\u202e", "\U0001f600", "é", "a", "red", "title:", "id", " IS NULL", "0"]  # fmt: skip
    answered = 0
    for _ in range(300):
        text, *filters = ("".join(choose.choices(signs, k=choose.randrange(12))) for _ in range(choose.randrange(1, 3)))
        try:
            search(texts, text, *filters)
            answered += 1
        except SearchRefused:
            continue
    assert 0 < answered < 300


def test_a_search_when_it_takes_too_long_then_it_is_refused(texts: Where, monkeypatch: pytest.MonkeyPatch) -> None:
    index = open_search(texts, TABLE)
    ends = threading.Event()
    with monkeypatch.context() as patched, pytest.raises(SearchRefused, match="took more than"):
        patched.setattr(index_query.FolderIndex, "_found", lambda *_: ends.wait())
        index.ask(Search("red", timeout_seconds=0.01))
    ends.set()


def test_a_search_when_its_rows_are_too_many_bytes_then_the_first_ones_are_given(
    texts: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "MOST_BYTES", 100)
    found = search(texts)
    assert (found.total, len(found.rows) + found.left_out) == (7, 7)
    assert 0 < len(found.rows) < 7


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> Where:
    return written(tmp_path_factory.mktemp("values"), list(map(value_row, range(len(AMOUNTS)))))


AMOUNTS = [0, 1, 2**53, 2**53 + 1, 2**63, 2**64 - 2, 2**64 - 1]
HUGE = [
    Decimal(text) for text in ("-1", "-0.0001", "0", "0.0001", "12345678901234567890", "-" + "9" * 34 + ".9999", "1")
]
RATIOS = [float("nan"), float("-inf"), -0.0, 0.1, 1e300, None, 5e-324]


def value_row(number: int) -> dict[str, object]:
    return {
        "id": 2**53 + number,
        "title": "t" * (VALUE_CHARS + number - 3),
        "amount": Decimal(AMOUNTS[number]),
        "price": Decimal(number) / 100 if number else None,
        "huge": HUGE[number],
        "ratio": RATIOS[number],
        "day": date(2026, 1, number + 1),
        "at": -1_000_000 + number,
        "seen": datetime(2026, 1, 1, 0, 0, 0, number, tzinfo=UTC),
        "spent": -1_500_000 * number,
        "is_new": number % 2 == 0,
        "raw": bytes([0, 255, number]),
    }


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("amount=9007199254740993", [3]),
        ("amount>9007199254740992", [3, 4, 5, 6]),
        ("amount>=18446744073709551614", [5, 6]),
        ("amount<1", [0]),
        ("amount!=0", [1, 2, 3, 4, 5, 6]),
        ("id=9007199254740995", [3]),
        ("id > 9007199254740996", [5, 6]),
        ("price=0.01", [1]),
        ("price=0.010", [1]),
        ("price<=0.02", [1, 2]),
        ("price IS NULL", [0]),
        ("price is not null", [1, 2, 3, 4, 5, 6]),
        ("huge<0", [0, 1, 5]),
        ("huge>=0.0001", [3, 4, 6]),
        ("huge=-0.0001", [1]),
        ("huge<-1", [5]),
        ("ratio=0.1", [3]),
        ("ratio<0.1", [1, 2, 6]),
        ("ratio>0.1", [4]),
        ("ratio>=-inf", [1, 2, 3, 4, 6]),
        ("ratio=0", [2]),
        ("ratio=nan", [0]),
        ("ratio IS NULL", [5]),
        ("day>=2026-01-06", [5, 6]),
        ("at=1969-12-31T23:59:59.000003", [3]),
        ("at<1969-12-31T23:59:59.000002", [0, 1]),
        ("seen>2026-01-01T01:00:00.000004+01:00", [5, 6]),
        ("spent=-00:00:01.5", [1]),
        ("spent<-00:00:06", [5, 6]),
        ("is_new=false", [1, 3, 5]),
        (f"title={'t' * (VALUE_CHARS + 3)}", [6]),
        (f"title={'t' * VALUE_CHARS}", [3]),
        (f"title!={'t' * (VALUE_CHARS + 3)}", [0, 1, 2, 3, 4, 5]),
        ("title IS NULL", []),
        ("a = b IS NULL", [0, 1, 2, 3, 4, 5, 6]),
        ("a = b=x", []),
    ],
)
def test_a_filter_when_it_compares_then_no_digit_is_lost(values: Where, said: str, found: list[int]) -> None:
    assert [each - 2**53 for each in ids(values, "", said)] == found


def test_a_row_when_it_is_found_then_it_has_all_columns_as_they_are(values: Where) -> None:
    (row,) = search(values, "", "amount=18446744073709551615").rows
    assert list(row) == SCHEMA.names
    shown = {name: row[name] for name in SCHEMA.names if name not in ("id", "title", "a = b", "ratio")}
    assert shown == {
        "amount": "18446744073709551615",
        "price": "0.06",
        "huge": "1.0000",
        "day": "2026-01-07",
        "at": "1969-12-31T23:59:59.000006",
        "seen": "2026-01-01T00:00:00.000006Z",
        "spent": "-00:00:09",
        "is_new": True,
        "raw": "0x00ff06",
    }


def test_facets_when_values_are_counted_then_each_has_its_rows_and_the_rest_is_said(
    values: Where, texts: Where
) -> None:
    asked = ["is_new", "amount", "price", "day", "title", "spent"]
    found = search(values, "", "id>9007199254740993", facets=asked).facets
    counts = {name: {each.value: each.rows for each in facet.counts} for name, facet in found.items()}
    assert counts["is_new"] == {True: 3, False: 2}
    assert counts["amount"] == dict.fromkeys(map(str, AMOUNTS[2:]), 1)
    assert counts["price"] == dict.fromkeys(("0.02", "0.03", "0.04", "0.05", "0.06"), 1)
    assert counts["day"] == {f"2026-01-0{day}": 1 for day in range(3, 8)}
    assert (len(counts["title"]), found["title"].other_rows) == (2, 3)  # the others are long
    assert counts["spent"]["-00:00:03"] == 1
    assert {each.value for each in search(texts, "red", facets=["a = b"]).facets["a = b"].counts} == {"red"}


def test_a_text_when_it_is_very_long_then_its_rest_is_not_searched_and_searches_say_so(tmp_path: Path) -> None:
    folder = written(tmp_path, [{"id": 1, "title": f"begin {'x' * SEARCHED_CHARS} end"}, {"id": 2, "title": "end"}])
    assert ids(folder, "begin") == [1]
    found = search(folder, "end")
    assert ([row["id"] for row in found.rows], found.clipped) == ([2], 1)
    (row,) = search(folder, "begin").rows
    assert str(row["title"]).endswith(" end")
