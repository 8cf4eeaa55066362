"""An index of one table in a folder, with tantivy.

Comes in: entries, and how far they are. Goes out: FOLDER/TENANT/SOURCE/DATABASE/TABLE/NUMBER, tantivy's files. The
position is a document of the index, so a commit has both or neither: tantivy replaces meta.json, which names the
segments, once they are synced. Durable: a commit. A kill leaves the last commit, and files that no meta.json names,
which the next writer removes.

Beside the numbers stands `TABLE_FILE`, which names the table, since the folder of a long name does not::

    {"format": 1, "tenant": "acme", "source": "shop", "database": "shop", "table": "orders"}

An index for another definition, or one that is built anew, is made beside the former, which answers until the new one
has its first commit; readers take the highest NUMBER with a position. One process writes in FOLDER, by a lock on
FOLDER/search.lock. A writer has `HEAP_BYTES` and one thread beside those that merge segments.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tantivy

from spark_sink.errors import SearchIndexFailed, SearchIndexMissing
from spark_sink.export.fields import Value
from spark_sink.reading_at import folder_path
from spark_sink.search.columns import NUMBERS, Column, Definition, Kind
from spark_sink.search.digests import place_of
from spark_sink.search.entries import Entry, Gone, Reached, sum_of
from spark_sink.search.words import analyzer
from spark_sink.work import TableId

HEAP_BYTES = 50_000_000
#: of a text's words, in characters; a row with more says so by its `STATE`
SEARCHED_CHARS = 1 << 20
#: of a text that is a value for equality and facets; a longer one has a digest for equality alone: values that no two
#: rows share cost most of an index
VALUE_CHARS = 64
LOCK_FILE = "search.lock"
TABLE_FILE, TABLE_FORMAT = "table.json", 1
#: the key's digest, and its first 63 bits
KEY, PLACE = "key", "place"
#: of the row's JSON: itself, and its digest
ROW, SUM = "row", "sum"
#: marks of documents: `POSITION`, which is no row, and `CLIPPED`
STATE = "state"
POSITION, CLIPPED = "position", "clipped"
_ANALYZER = "menura"


def words_field(place: int) -> str:
    return f"words{place}"


def value_field(place: int) -> str:
    """Of a value of each kind but binary."""
    return f"value{place}"


def long_field(place: int) -> str:
    """Of a text that is no value: `sum_of` it."""
    return f"long{place}"


def parts_fields(place: int) -> tuple[str, str]:
    """Of a wide decimal: the number's upper bits, and its lower 64."""
    return f"upper{place}", f"lower{place}"


def parts(number: int) -> tuple[int, int]:
    """
    >>> parts(-1)
    (-1, 18446744073709551615)
    """
    return number >> 64, number & ((1 << 64) - 1)


def _schema(definition: Definition) -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    raw: dict[str, Any] = {"tokenizer_name": "raw", "index_option": "basic"}
    builder.add_text_field(KEY, **raw)
    builder.add_text_field(STATE, **raw)
    builder.add_integer_field(PLACE, indexed=True, fast=True)
    builder.add_integer_field(SUM, fast=True)
    builder.add_bytes_field(ROW, stored=True)
    for place, column in enumerate(definition.columns):
        name, indexed = value_field(place), {"indexed": True, "fast": True}
        if column.kind is Kind.TEXT:
            builder.add_text_field(words_field(place), tokenizer_name=_ANALYZER)
            builder.add_integer_field(long_field(place), **indexed)
        if column.kind in (Kind.TEXT, Kind.WIDE):
            builder.add_text_field(name, fast=True, **raw)
        if column.kind is Kind.WIDE:
            upper, lower = parts_fields(place)
            builder.add_integer_field(upper, **indexed)
            builder.add_unsigned_field(lower, **indexed)
        elif column.kind in NUMBERS:
            builder.add_integer_field(name, **indexed)
        elif column.kind is Kind.FLOAT:
            builder.add_float_field(name, **indexed)
        elif column.kind is Kind.BOOLEAN:
            builder.add_boolean_field(name, **indexed)
    return builder.build()


def _add(document: tantivy.Document, place: int, column: Column, value: Value) -> bool:
    """Whether all of it is searchable."""
    name = value_field(place)
    if column.kind is Kind.TEXT:
        document.add_text(words_field(place), value[:SEARCHED_CHARS])
        if len(value) <= VALUE_CHARS:
            document.add_text(name, value)
        else:
            document.add_integer(long_field(place), sum_of(value))
        return len(value) <= SEARCHED_CHARS
    if column.kind is Kind.WIDE:
        (upper, lower), (high, low) = parts_fields(place), parts(column.indexed(value))
        document.add_text(name, value)
        document.add_integer(upper, high)
        document.add_unsigned(lower, low)
    elif column.kind in NUMBERS:
        document.add_integer(name, column.indexed(value))
    elif column.kind is Kind.FLOAT:
        document.add_float(name, column.indexed(value))
    elif column.kind is Kind.BOOLEAN:
        document.add_boolean(name, value)
    return True


class OpenIndex:
    """A committed index, as it was when it was opened."""

    def __init__(self, home: Path, number: int) -> None:
        """Raises `SearchIndexFailed`."""
        self.number, folder = number, home / str(number)
        with failures(folder):
            self.index = tantivy.Index.open(str(folder))
            self.index.register_tokenizer(_ANALYZER, analyzer())
            self.schema = self.index.schema
            self.searcher = self.index.searcher()
            found = self.searcher.search(self.term(STATE, POSITION), 1).hits
            text = self.row(found[0][1]) if found else ""
        #: None: nothing was committed yet
        self.reached = Reached.read(text, str(folder)) if found else None

    def term(self, field: str, value: Value) -> tantivy.Query:
        return tantivy.Query.term_query(self.schema, field, value)

    def row(self, address: tantivy.DocAddress) -> str:
        """A document's JSON."""
        found: bytes = self.searcher.doc(address)[ROW][0]
        return found.decode(errors="surrogatepass")

    @property
    def rows(self) -> int:
        return self.searcher.num_docs - 1  # without the position


def open_index(folder: Path, table: TableId) -> tuple[OpenIndex, Reached]:
    """The table's index below the folder. Raises `SearchIndexMissing` and `SearchIndexFailed`."""
    home = folder / folder_path(table)
    while True:
        numbers, failure = _begun(home), None
        for number in reversed(numbers):
            try:
                found = OpenIndex(home, number)
            except SearchIndexFailed as why:  # being made, or being removed since another one has its place
                failure = failure or why
                continue
            if found.reached is not None:
                return found, found.reached
        if _begun(home) == numbers:
            raise failure or SearchIndexMissing(
                "opening a search index",
                f"{folder} has none of {table} that was completed",
                remedy=f"Build it: menura search index {folder_path(table)} --lake LAKE --folder {folder}",
            )


def _begun(home: Path) -> list[int]:
    """Without those of which a kill left the folder alone."""
    with failures(home):
        return [number for number in _numbers(home) if (home / str(number) / "meta.json").exists()]


def _numbers(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(each.name) for each in folder.iterdir() if each.name.isascii() and each.name.isdigit())


class IndexWriter:
    """Writes a table's index; a `SearchOutput`."""

    def __init__(self, folder: Path, table: TableId, definition: Definition, number: int | None = None) -> None:
        """`number`: of the one that is there; None: begin an empty one beside it."""
        self._home = folder / folder_path(table)
        self.number = number if number is not None else max(_numbers(self._home), default=0) + 1
        self._folder = self._home / str(self.number)
        self._definition = definition
        with failures(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            _put_name(self._home, table)
            index = tantivy.Index(_schema(definition), path=str(self._folder))
            index.register_tokenizer(_ANALYZER, analyzer())
            self._writer = index.writer(HEAP_BYTES, 1)

    def upsert(self, entries: Iterable[Entry], *, are_new: bool = False) -> None:
        with failures(self._folder):
            for entry in entries:
                if not are_new:
                    self._writer.delete_documents_by_term(KEY, entry.key)
                self._writer.add_document(self._document(entry))

    def delete(self, keys: Iterable[Gone]) -> None:
        with failures(self._folder):
            for each in keys:
                self._writer.delete_documents_by_term(KEY, each.key)

    def clear(self) -> None:
        with failures(self._folder):
            # All of them by a query: tantivy's own delete_all_documents forgets segments before the commit.
            self._writer.delete_documents_by_query(tantivy.Query.all_query())

    def commit(self, reached: Reached) -> None:
        with failures(self._folder):
            self._writer.delete_documents_by_term(STATE, POSITION)
            document = tantivy.Document()
            document.add_text(STATE, POSITION)
            document.add_bytes(ROW, json.dumps(reached.document()).encode())
            self._writer.add_document(document)
            self._writer.commit()
            for number in _numbers(self._home):
                if str(number) != self._folder.name:
                    shutil.rmtree(self._home / str(number))

    def roll_back(self) -> None:
        """To the last commit."""
        with failures(self._folder):
            self._writer.rollback()

    def close(self) -> None:
        """Once merges of segments are done."""
        with failures(self._folder):
            self._writer.wait_merging_threads()

    def _document(self, entry: Entry) -> tantivy.Document:
        document, text = tantivy.Document(), entry.text
        document.add_text(KEY, entry.key)
        document.add_integer(PLACE, place_of(entry.key))
        document.add_integer(SUM, sum_of(text))
        document.add_bytes(ROW, text.encode(errors="surrogatepass"))
        is_whole = True
        for place, column in enumerate(self._definition.columns):
            value = entry.values.get(column.name)
            if value is not None:
                is_whole &= _add(document, place, column, value)
        if not is_whole:
            document.add_text(STATE, CLIPPED)
        return document


@dataclass(frozen=True, slots=True)
class FolderEngine:
    """A `SearchEngine`."""

    folder: Path

    def taking(self) -> AbstractContextManager[None]:
        return taking(self.folder)

    def reached(self, table: TableId) -> Reached | None:
        try:
            return open_index(self.folder, table)[1]
        except SearchIndexMissing:
            return None

    def output(self, table: TableId, definition: Definition, held: Reached | None) -> IndexWriter:
        number = open_index(self.folder, table)[0].number if held is not None else None
        return IndexWriter(self.folder, table, definition, number)


def _put_name(home: Path, table: TableId) -> None:
    if not (home / TABLE_FILE).exists():
        draft = home / f"{TABLE_FILE}.draft"
        draft.write_text(json.dumps({"format": TABLE_FORMAT, **asdict(table)}))
        draft.rename(home / TABLE_FILE)


@contextmanager
def taking(folder: Path) -> Iterator[None]:
    """Be the one process that writes there. Raises `SearchIndexFailed`."""
    with failures(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as taken:
        os.close(lock)
        raise SearchIndexFailed(
            "indexing tables",
            f"{folder}: another process writes indexes there",
            data="Nothing was changed",
            remedy="Wait until that one has ended, or give this one a folder of its own",
        ) from taken
    try:
        yield
    finally:
        os.close(lock)


@contextmanager
def failures(folder: Path) -> Iterator[None]:
    """Around what is done to the folder; tantivy's errors are ValueErrors."""
    try:
        yield
    except (OSError, ValueError) as failure:
        found = failure.strerror if isinstance(failure, OSError) else str(failure).partition("\n")[0][:200]
        raise SearchIndexFailed(
            "using a search index",
            f"{folder}: {found or type(failure).__name__}",
            data="The index stays as it was committed last",
            remedy="Check the disk and who may write there, then try again; a folder that stays unreadable may be"
            " removed, and `menura search index` builds it anew",
        ) from failure
