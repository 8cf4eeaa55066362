"""Where an export goes: a folder of files, each change once, or standard output, each change at least once.

Comes in: `Step`s. Goes out: lines. Durable:

* Of a folder: FOLDER/TENANT/SOURCE/DATABASE/TABLE/CUT-GSN.jsonl, a file of each table and step with changes (in Avro
  one or several, see `avro_files`), and FOLDER/position.json. The files are written beside their names and synced;
  then the position, which names them; then they get their names. So a kill leaves a position whose files are there or
  get their names at the next start, or drafts that no position names, which go. A reader sees whole files only, each
  once, also if it takes them away.
  One output at a time has the folder, by a lock on FOLDER/position.lock; files of others there stay as they are.
* Of standard output: the position file, if one is named, after the step's last line has been handed over. A kill
  between gives the step's lines again.
"""

import fcntl
import json
import os
import re
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

from spark_sink.errors import ExportOutputFailed, ExportPositionInvalid
from spark_sink.export.envelope import JsonLines, Message
from spark_sink.export.feed import Step, TableStep
from spark_sink.export.position import MAX_BYTES, Position, read_position
from spark_sink.reading_at import folder_path

POSITION_FILE = "position.json"
#: beside the position: the producer that it is of, where other producers may get the same place
OWNER = "producer"
#: a file of its own, since NFS locks no folders; no tenant has a name with a point
LOCK_FILE = "position.lock"
#: of a step's files, at once
OPEN_FILES = 256
_DRAFT = ".draft"
_NAME = re.compile(r"([^/]+/){4}\d{20}-\d{20}(\.jsonl|-\d{6,}\.avro)")


@dataclass(frozen=True, slots=True)
class Form:
    """Of lines."""

    keys: bool = False
    schema: bool = False
    tombstones: bool = True
    #: operations that are left out
    skipped: frozenset[str] = frozenset()

    def has(self, message: Message) -> bool:
        return message.op not in self.skipped if message.op else self.tombstones and "d" not in self.skipped


class Sheet(Protocol):
    """An open file of messages."""

    def write(self, data: bytes, /) -> object: ...

    def close(self) -> object: ...


#: of a message: how its file's name ends, how that is opened (True: to go on with it), what is written there
Entry = tuple[str, Callable[[Path, bool], Sheet], bytes]


class Entries(Protocol):
    """Of a step's messages in their order."""

    def entry(self, of: TableStep, message: Message) -> Entry | None:
        """None: it is left out."""


@dataclass(slots=True)
class JsonEntries:
    form: Form
    _lines: dict[int, JsonLines] = field(default_factory=dict)

    def entry(self, of: TableStep, message: Message) -> Entry | None:
        line = self.line(of, message)
        return (".jsonl", _lines_file, f"{line}\n".encode()) if line is not None else None

    def line(self, of: TableStep, message: Message) -> str | None:
        if not self.form.has(message):
            return None
        encoder = self._lines.get(id(of))
        if encoder is None:
            encoder = self._lines[id(of)] = JsonLines(of.envelope, keys=self.form.keys, schema=self.form.schema)
        return encoder.line(message)


def _lines_file(path: Path, goes_on: bool) -> Sheet:
    return path.open("ab" if goes_on else "wb")


class ReaderGone(BrokenPipeError):
    """Whoever read standard output; a store whose connection breaks raises another BrokenPipeError."""


class Writes(Protocol):
    def write(self, step: Step) -> None:
        """Raises `SinkError`."""


class Output(Writes, Protocol):
    def position(self) -> Position | None:
        """Behind what is out; None: nothing is. Completes what a kill has left. Raises `SinkError`."""


class FolderOutput:
    def __init__(
        self, folder: Path, form: Form, entries: Callable[[Form], Entries] = JsonEntries, owner: str | None = None
    ) -> None:
        """`owner`: whose position it is, which stands with it; that of another owner is refused."""
        self._folder = folder
        self._owner = owner
        self._form = form
        self._entries = entries
        #: lets go of the folder; None: it is not taken yet
        self._lets_go: Callable[[], object] | None = None

    def position(self) -> Position | None:
        """Raises `SinkError`, and has let go of the folder then."""
        try:
            return self._position()
        except BaseException:
            self.close()
            raise

    def _position(self) -> Position | None:
        with _writing(self._folder):
            self._take()
            held = _read(self._folder / POSITION_FILE, self._owner)
            if held is not None:
                # One that is gone has its name, and may be taken away.
                self._give_names([name for name in held[1] if (self._folder / (name + _DRAFT)).exists()])
            for left in self._folder.glob(f"*/*/*/*/*{_DRAFT}"):
                if _NAME.fullmatch(str(left.relative_to(self._folder)).removesuffix(_DRAFT)):
                    left.unlink()
            return held[0] if held is not None else None

    def write(self, step: Step) -> None:
        with _writing(self._folder):
            self._take()
        with closing(_Drafts(self._folder)) as drafts:
            self._write_drafts(step, drafts)
            with _writing(self._folder):
                drafts.sync()
                names = sorted(drafts.names)
                document = step.position.document() | {"files": names} | _of(self._owner)
                replace_document(self._folder / POSITION_FILE, document)
                self._give_names(names)

    def close(self) -> None:
        """Lets go of the folder."""
        if self._lets_go is not None:
            self._lets_go()
            self._lets_go = None

    def _take(self) -> None:
        """The folder, until this output is gone: another one would remove its drafts as those that a kill has left."""
        if self._lets_go is not None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
        lets_go = weakref.finalize(self, os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as taken:
            lets_go()
            raise ExportOutputFailed(
                "writing an export",
                f"{self._folder}: another export writes there",
                data="Nothing was exported",
                remedy="Wait until that one has ended, or give this one a folder of its own",
            ) from taken
        self._lets_go = lets_go

    def _write_drafts(self, step: Step, drafts: "_Drafts") -> None:
        entries = self._entries(self._form)
        for of, message in step.messages():
            entry = entries.entry(of, message)
            if entry is not None:
                table = of.envelope.table
                cut = step.position.cuts[table.tenant, table.source]
                with _writing(self._folder):
                    drafts.write(f"{folder_path(table)}/{cut:020}-{of.after.gsn:020}", entry)

    def _give_names(self, names: list[str]) -> None:
        for name in names:
            try:
                (self._folder / (name + _DRAFT)).replace(self._folder / name)
            except FileNotFoundError as gone:
                raise ExportOutputFailed(
                    "writing an export",
                    f"{self._folder}: {name}{_DRAFT} is gone, and something else than this export has removed it",
                    data="The changes in it are not out, and the position is behind them",
                    remedy="Let nothing else write there, and begin anew in another folder, with --from state",
                ) from gone
        for folder in {(self._folder / name).parent for name in names}:
            _sync(folder)


class _Drafts:
    """The files of a step, beside their names; those that were written last are open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.names: set[str] = set()
        #: the one that was written last is the last
        self._open: dict[str, Sheet] = {}

    def write(self, stem: str, entry: Entry) -> None:
        suffix, opens, data = entry
        name = stem + suffix
        file = self._open.pop(name, None) or self._opened(name, opens)
        self._open[name] = file
        file.write(data)

    def _opened(self, name: str, opens: Callable[[Path, bool], Sheet]) -> Sheet:
        if len(self._open) >= OPEN_FILES:
            self._open.pop(next(iter(self._open))).close()
        path = self._folder / (name + _DRAFT)
        goes_on = name in self.names
        path.parent.mkdir(parents=True, exist_ok=True)
        self.names.add(name)
        return opens(path, goes_on)

    def sync(self) -> None:
        self.close()
        for name in self.names:
            _sync(self._folder / (name + _DRAFT))

    def close(self) -> None:
        with _writing(self._folder):
            while self._open:
                self._open.popitem()[1].close()


class StreamOutput:
    def __init__(self, stream: TextIO, form: Form, position_file: Path | None = None, owner: str | None = None) -> None:
        """`owner`: as of `FolderOutput`."""
        self._owner = owner
        self._stream = stream
        self._form = form
        self._position_file = position_file

    def position(self) -> Position | None:
        if self._position_file is None:
            return None
        with _writing(self._position_file):
            held = _read(self._position_file, self._owner)
        return held[0] if held is not None else None

    def write(self, step: Step) -> None:
        encoders, where = JsonEntries(self._form), self._position_file or Path("standard output")
        for of, message in step.messages():
            line = encoders.line(of, message)
            if line is not None:
                with _writing(where):
                    self._stream.write(line + "\n")
        with _writing(where):
            self._stream.flush()
            if self._position_file is not None:
                replace_document(self._position_file, step.position.document() | _of(self._owner))


def standard_output() -> TextIO:
    """In UTF-8, whatever the terminal's words are."""
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    return sys.stdout


def _of(owner: str | None) -> dict[str, str]:
    return {OWNER: owner} if owner is not None else {}


def _read(path: Path, owner: str | None) -> tuple[Position, list[str]] | None:
    """The position, and which files go with it. Raises `ExportPositionInvalid`."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        text = file.read(MAX_BYTES).decode(errors="replace")
    position = read_position(text, str(path))
    document = json.loads(text)
    if (other := document.get(OWNER)) is not None and other != owner:
        raise ExportPositionInvalid(
            "reading an export's position",
            f"{path} has the position of the producer {str(other)[:200]!r}, and this is {owner or 'another export'}:"
            " what that one has written, this one has not",
            data="Nothing was written, and the position stays as it is",
            remedy="Give the new producer another name, under which it begins anew; or, if it is the former one that"
            f" was renamed, stop it and write the new name for {OWNER!r} there",
        )
    names = document.get("files", [])
    if not isinstance(names, list) or not all(map(_is_name, names)):
        raise ExportPositionInvalid(
            "reading an export's position",
            f"{path} names files that no export writes",
            data="Nothing was exported",
            remedy="Put the file back; or begin anew in another folder, with --from state",
        )
    return position, names


def _is_name(word: object) -> bool:
    """Below the folder, and of an export's form."""
    return isinstance(word, str) and _NAME.fullmatch(word) is not None and not {"..", "."} & set(word.split("/"))


def replace_document(path: Path, document: Mapping[str, Any]) -> None:
    """As JSON; a kill leaves the former file or this one. Raises OSError."""
    draft = path.with_name(path.name + _DRAFT)
    with draft.open("w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _writing(where: Path) -> Iterator[None]:
    """Around what is done to the output alone: what the lake's store refuses is told by whoever has the lake."""
    try:
        yield
    except BrokenPipeError as gone:
        raise ReaderGone(*gone.args) from gone
    except OSError as failure:
        raise ExportOutputFailed(
            "writing an export",
            f"{where}: {failure.strerror or type(failure).__name__}",
            data="The position stays where it was; what is not out comes with the next start",
            remedy="Check the disk and who may write there, then start it again",
        ) from failure
