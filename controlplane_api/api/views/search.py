"""Searches: which tables and views have an index, the rows that a search finds; and the newest changes of a table."""

from typing import Annotated

from pydantic import Field

from controlplane_api.api.views.base import View

#: An integer beyond 2^53, which readers of JSON round, is a text; so are decimals, dates and instants.
Value = str | int | float | bool | None


class SearchColumnView(View):
    name: str
    #: text, integer, date, timestamp, instant, time, decimal, wide decimal, float, boolean or binary
    kind: str


class SearchedView(View):
    """How far an index is."""

    #: as of which cut of its source the index is, and when it was brought there; null: it can't be read
    cut: int | None
    at_us: int | None
    #: the newest that the lake has; null: not known
    lake_cut: int | None
    #: since the lake has had what the index has not; 0: the index has all. Null: not known
    behind_us: int | None
    #: why something of this is not known; empty: all is
    unknown: str


class SearchIndexFacts(SearchedView):
    """An index, as the search service says it."""

    source: str
    database: str
    table: str
    #: null: it can't be read
    rows: int | None


class SearchIndexPage(View):
    """Indexes, as the search service says them."""

    indexes: list[SearchIndexFacts]
    next: Annotated[list[str], Field(min_length=3, max_length=3)] | None


class SearchIndexView(SearchIndexFacts):
    """Of a table, or of a joined view: `view` is its name, and source, database and table are empty."""

    view: str


class SearchIndexes(View):
    indexes: list[SearchIndexView]
    #: for the next page; null on the last
    next_cursor: str | None = None


class FacetCountView(View):
    value: Value
    rows: int


class FacetView(View):
    """How many rows of those that were found have each value."""

    column: str
    #: the most frequent ones
    counts: list[FacetCountView]
    #: that have others; nulls are in neither
    other_rows: int


class SearchAnswer(SearchedView):
    #: of the table or view, in their order
    columns: list[SearchColumnView]
    key: list[str]
    #: how many rows fit
    total: int
    #: the best of them, each with all of its columns
    rows: list[dict[str, Value]]
    facets: list[FacetView]
    #: of the best ones, that would have been too many bytes
    left_out: int
    #: values that are cut off after 65,536 characters
    shortened: int
    #: rows of the table with texts that are too long to be searched to their end
    clipped: int


class RowChangeView(View):
    """One change, in Debezium's words; values are texts."""

    #: c: a row came, u: it changed, d: it went, r: a dump brought it, t: all rows went
    op: str
    #: its place in the source's order; texts, since readers of JSON round large integers
    gsn: str
    transaction_id: str
    #: when it was committed at the source
    at_us: int
    #: behind the transaction, in the source's words
    position: str
    #: null: the table has no key, or all rows went
    key: dict[str, Value] | None
    #: null: there was no row, or none that is known
    before: dict[str, Value] | None
    after: dict[str, Value] | None
    #: columns of which the source's log did not carry the value
    absent_before: list[str]
    absent_after: list[str]


class RecentChanges(View):
    #: of the source, up to which the lake has the table
    cut: int
    #: the newest first
    changes: list[RowChangeView]
    #: older ones that would have been too many bytes
    left_out: int
    #: values that are cut off after 65,536 characters
    shortened: int
