"""Rules for where in the lake new tables stand: a regular expression and a template, `menura sink run --table-folders`.

Comes in: the words of the argument, a table. Goes out: the table's folder below the lake, or why the rule gives none.
Names of databases and tables are anybody's: each stands in a template as text, and the whole segment is written as all
of the lake's segments are (`work.lake_segment`), so that no name is a path, a hidden file or too long for one. Regular
expressions are RE2's, which take a time in proportion to the name, whatever it is.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_sink.work import TableId, lake_segment

#: of a folder below the lake; an object store's path has at most 1,024 bytes, with the lake's address and a file's name
MOST_SEGMENTS = 8
MOST_CHARS = 700
_FIELD = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LITERAL = re.compile(r"[A-Za-z0-9._-]*")
_OF_TABLE = ("tenant", "source", "database", "table")


@dataclass(frozen=True, slots=True)
class FolderRules:
    """Which folders new tables get: the last rule counts that the whole of TENANT/SOURCE/DATABASE.TABLE fits.

    >>> rules = FolderRules.parse(["{database}/{table}", r"acme/.*/(?P<shop>.*)_\\d+\\.(.*)=shops/{shop}_{source}"])
    Traceback (most recent call last):
    ...
    ValueError: 'acme/.*/(?P<shop>.*)_\\\\d+\\\\.(.*)=shops/{shop}_{source}': Regular expression contains unnamed groups
    >>> rules = FolderRules.parse(["{database}/{table}", r"acme/.*\\.(?P<name>.*)_v\\d+=old/{name}"])
    >>> [rules.folder_of(TableId("acme", "shop", "shop", name)) for name in ("orders", "orders_v1", "../..")]
    ['shop/orders', 'old/orders', 'shop/~2E.~2F..']
    """

    rules: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, words: Sequence[str]) -> "FolderRules":
        """From `[REGULAR EXPRESSION=]TEMPLATE`. Raises ValueError."""
        return cls(tuple(map(_rule, words)))

    def folder_of(self, table: TableId) -> str:
        """Below the lake. Raises ValueError where a table of this name can't have the folder of its rule."""
        name = f"{table.tenant}/{table.source}/{table.database}.{table.table}"
        for pattern, template in reversed(self.rules):
            if (groups := _groups(pattern, name)) is not None:
                return _filled(template, {**{each: getattr(table, each) for each in _OF_TABLE}, **groups})
        return table.default_folder


DEFAULT_FOLDERS = FolderRules()


def _rule(word: str) -> tuple[str, str]:
    pattern, _, template = word.rpartition("=")
    pattern = pattern or ".*"
    try:
        groups = pc.extract_regex(pa.array([""]), pattern=_whole(pattern)).type
    except pa.ArrowInvalid as wrong:
        raise ValueError(f"{word!r}: {wrong}") from wrong
    names = {groups.field(place).name for place in range(groups.num_fields)}
    if taken := sorted(names & set(_OF_TABLE)):
        raise ValueError(f"{word!r} has a group {taken[0]!r}, which is the table's own word")
    segments = template.split("/")
    if len(segments) > MOST_SEGMENTS:
        raise ValueError(f"{word!r} has {len(segments)} segments, and {MOST_SEGMENTS} are the most")
    for segment in segments:
        if unknown := next((each for each in _FIELD.findall(segment) if each not in {*names, *_OF_TABLE}), None):
            raise ValueError(f"{word!r} has {{{unknown}}}, which is no group, nor one of {', '.join(_OF_TABLE)}")
        literal = _FIELD.sub("", segment)
        if not segment or segment.startswith((".", "_")) or not _LITERAL.fullmatch(literal):
            raise ValueError(f"{word!r} has the segment {segment!r}: {_SEGMENTS}")
    return pattern, template


_SEGMENTS = "segments are of {names} and of a-z, A-Z, 0-9, '.', '_' and '-', and begin with no '.' or '_'"


def _groups(pattern: str, name: str) -> Mapping[str, str] | None:
    """What the groups hold; None where the name does not fit."""
    found: Mapping[str, str] | None = pc.extract_regex(pa.array([name]), pattern=_whole(pattern))[0].as_py()
    return found


def _whole(pattern: str) -> str:
    return f"^(?s:{pattern})$"


def _filled(template: str, values: Mapping[str, str]) -> str:
    segments = [_FIELD.sub(lambda field: values[field[1]], segment) for segment in template.split("/")]
    if not all(segments):
        raise ValueError(f"its name leaves a segment of {template} empty")
    folder = "/".join(map(lake_segment, segments))
    if len(folder) > MOST_CHARS:
        raise ValueError(f"its name makes {len(folder)} signs of {template}, and {MOST_CHARS} are the most")
    return folder
